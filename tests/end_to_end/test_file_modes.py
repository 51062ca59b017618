"""Files and folders of commands follow the umask, and are not more private."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretrainkit.api import export, import_model
from support.command_line import succeed
from support.generated_text import documents

UMASKS = (0o022, 0o027)


@pytest.fixture(params=UMASKS, ids=["umask-022", "umask-027"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def other_modes(folder: Path, umask: int) -> dict[str, str]:
    """Return the files in `folder` whose mode differs from that of programs that follow the umask."""
    found = {}
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode != (0o777 if path.is_dir() else 0o666) & ~umask:
            found[path.relative_to(folder).as_posix()] = oct(mode)
    return found


def test_files_of_commands_follow_the_umask(umask: int, settings: list[str], finished: Path, tmp_path: Path) -> None:
    """The umask also decides if they copy files that are more private."""
    (tmp_path / "text.txt").write_text("\n\n".join(documents()[:40]), encoding="utf-8")
    out = tmp_path / "out"
    succeed("corpus", "shards", tmp_path / "text.txt", "--out", out / "corpus", "--num-shards", 1, "--heldout", 0.1)
    train = out / "corpus" / "train" / "*.jsonl"
    succeed("corpus", "count-words", train, "--out", out / "words.tsv", "--workers", 1)
    succeed("tokenizer", "train", out / "words.tsv", "--vocab-size", 400, "--out", out / "tokenizer")
    for path in (out / "tokenizer").iterdir():
        path.chmod(0o600)
    (out / "tokenizer").chmod(0o700)
    succeed("tokenizer", "encode", out / "corpus", "--tokenizer", out / "tokenizer", "--out", out / "tokens")
    private = (out / "tokenizer").rename(tmp_path / "private")
    kept = out / "tokens" / "train" / "tokenizer"
    for path, mode in ((kept, 0o700), (kept / "tokenizer.json", 0o600)):
        path.chmod(mode)
    short = ["num_steps=2", f"data.train={out}/tokens/train", f"data.valid={out}/tokens/valid"]
    succeed("train", *settings, *short, "--out", out / "run")
    kept.chmod(0o777 & ~umask)
    (kept / "tokenizer.json").chmod(0o666 & ~umask)
    for format in ("huggingface", "safetensors"):
        export(finished, format, out / format)
    import_model(out / "huggingface", "bert", out / "imported", tokenizer=private)
    assert (out / "huggingface" / "model.safetensors").is_file()
    assert other_modes(out, umask) == {}
