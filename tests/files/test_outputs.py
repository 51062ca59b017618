"""Files that a killed export leaves beside its folder, and their removal."""

import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pretrainkit.files.outputs import folder_beside, new_file, new_folder, replacing_file

WRITER = """
import sys
from pathlib import Path
from pretrainkit.files.outputs import folder_beside, new_file, new_folder, replacing_file

writers = {"file": new_file, "folder": new_folder, "beside": folder_beside, "replacing": replacing_file}
with writers[sys.argv[1]](Path(sys.argv[2])) as aside:
    if sys.argv[1] == "replacing":
        aside.write(b"half")
    else:
        (aside / "half" if aside.is_dir() else aside).write_text("half")
    print("writing", flush=True)
    sys.stdin.read()
"""


def writer(kind: str, out: Path) -> subprocess.Popen:
    """A process that is in the middle of writing `out`, until it is killed or its input ends."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, kind, out], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"writing\n"
    return process


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def opened(kind: str, out: Path) -> AbstractContextManager[Path]:
    return (new_folder if kind == "folder" else new_file)(out)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_the_next_process_removes_the_rest_of_a_killed_one(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "my [model].v1"
    kill(writer(kind, out))
    (left,) = tmp_path.iterdir()
    others = [tmp_path / f".{name}" for name in ("my [model].v1-notes", "my [model].v10-0123abcd", "other-0123abcd")]
    for other in others:
        other.mkdir()
    a_file = tmp_path / ".my [model].v1-0123abcd"
    a_file.write_text("of somebody else")
    with opened(kind, out) as aside:
        assert not left.exists()
        (aside / "all" if kind == "folder" else aside).write_text("all")
    assert set(tmp_path.iterdir()) == {out, a_file, *others}


@pytest.mark.parametrize("kind", ["beside", "replacing"])
def test_work_folders_of_killed_processes_are_removed(kind: str, tmp_path: Path) -> None:
    """They hold the trial of `train --hours`, the duplicates of a page, and unpacked lines."""
    out = tmp_path / "out"
    kill(writer(kind, out))
    (left,) = tmp_path.iterdir()
    with folder_beside(out):
        assert not left.exists()
    assert not list(tmp_path.iterdir())
    out.write_bytes(b"before")
    with replacing_file(out) as file:
        file.write(b"all")
    assert out.read_bytes() == b"all"
    assert list(tmp_path.iterdir()) == [out]


def test_the_rest_of_a_process_killed_in_a_part_of_its_export_is_also_removed(tmp_path: Path) -> None:
    left = [tmp_path / ".model-01234567", tmp_path / "..model-01234567-89abcdef"]
    for folder in left:
        (folder / "tokenizer").mkdir(parents=True)
    with new_folder(tmp_path / "model"):
        assert not any(folder.exists() for folder in left)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_files_that_another_process_is_writing_are_kept(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "model"
    first = writer(kind, out)
    (its,) = tmp_path.iterdir()
    try:
        with pytest.raises(KeyboardInterrupt), opened(kind, out):
            raise KeyboardInterrupt
        assert list(tmp_path.iterdir()) == [its]
        first.communicate()
        assert first.returncode == 0
        assert list(tmp_path.iterdir()) == [out]
    finally:
        kill(first)
