"""Commands of the corpus under a real SLURM: the same bytes, also when the command that waits is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import slurm_cluster

WHY_NOT = slurm_cluster.why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]
SLURM = ("--engine", "slurm", "--slurm", "partition=low", "--memory", "300MB")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    source = Path(sys.modules["pretrainkit"].__path__[0]).parent
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as config, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(config))
        patch.setenv("PYTHONPATH", str(source))
        yield config


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of a task each; half of the documents occur twice."""
    folder = tmp_path_factory.mktemp("raw")
    for number in (0, 1):
        text = " ".join(f"w{place * 7919 % 1009}" for place in range(8000))
        lines = (f'{{"text":"{n % 6000} {number * n % 2} {text}"}}\n' for n in range(1700))
        (folder / f"{number}.jsonl").write_text("".join(lines))
    return folder


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "pretrainkit", "corpus", *map(str, words)]


def all_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_dedup_and_shuffle_give_the_same_bytes(cluster: Path, raw: Path, tmp_path: Path) -> None:
    for name, engine in (("here", ()), ("there", SLURM)):
        once, mixed = tmp_path / name / "once", tmp_path / name / "mixed"
        dedup = command("dedup", raw, "--method", "exact", "--num-shards", "2", "--out", once, *engine)
        subprocess.run(dedup, check=True, timeout=300)
        # From one folder, since manifests name it.
        subprocess.run(
            command("shuffle", tmp_path / "here/once", "--num-shards", "3", "--out", mixed, *engine),
            check=True,
            timeout=300,
        )
    assert all_bytes(tmp_path / "here") == all_bytes(tmp_path / "there")
    assert all_bytes(tmp_path / "here")


def test_a_killed_command_resumes(cluster: Path, raw: Path, tmp_path: Path) -> None:
    words = ("shuffle", raw, "--num-shards", "2", "--out")
    subprocess.run(command(*words, tmp_path / "whole"), check=True, timeout=300)
    out = tmp_path / "killed"
    # One at a time, so that one task is finished and another is not begun or under way.
    killed = subprocess.Popen(command(*words, out, *SLURM, "--workers", "1"))
    deadline = time.monotonic() + 200
    while not list(out.glob(".work/task-*/task.json")):
        assert time.monotonic() < deadline
        assert killed.poll() is None
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    finished = next(out.glob(".work/task-*/task.json"))
    written = finished.stat().st_mtime_ns
    said = subprocess.run(command(*words, out, *SLURM), check=True, timeout=300, capture_output=True, text=True).stderr
    assert "of 2 groups of files were already read" in said
    assert written < time.time_ns()
    assert all_bytes(out) == all_bytes(tmp_path / "whole")
    left = subprocess.run(["squeue", "--noheader"], env=os.environ, capture_output=True, text=True).stdout
    assert not left.strip()


def test_a_partition_that_does_not_exist_is_one_message(cluster: Path, raw: Path, tmp_path: Path) -> None:
    words = command("shuffle", raw, "--out", tmp_path / "out", "--engine", "slurm", "--slurm", "partition=no")
    result = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert "invalid partition" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()
