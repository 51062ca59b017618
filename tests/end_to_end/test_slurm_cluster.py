"""A pre-emption, a time limit and a killed rank under a real SLURM: the same losses, bit for bit."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm_cluster
from command_line import metric_lines, succeed

from pretrainkit.launch.folder import LaunchFolder

WHY_NOT = slurm_cluster.why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]
LONG = ("num_steps=400", "checkpoint.every_steps=50", "evaluate.every_steps=1000")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    source = Path(sys.modules["pretrainkit"].__path__[0]).parent
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as config, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(config))
        patch.setenv("PYTHONPATH", str(source))
        yield config


@pytest.fixture(scope="module")
def undisturbed(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    words = ["train", *settings, *LONG, "--out", str(run), "--launch", "local", "--nproc", "2"]
    subprocess.run([sys.executable, "-m", "pretrainkit", *words], check=True, capture_output=True, timeout=500)
    return metric_lines(run)


def wait_until(is_so: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def preempt(run: Path, job_id: str) -> None:
    subprocess.run(["sbatch", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 1"], check=True)


def reach_the_limit(run: Path, job_id: str) -> None:
    subprocess.run(["scancel", "--signal=USR2", job_id], check=True)


def kill_a_rank(run: Path, job_id: str) -> None:
    os.kill(int((run / "logs/rank-1.pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("disturb", "code", "cause"),
    [(preempt, 130, "a pre-emption"), (reach_the_limit, 130, "its time limit"), (kill_a_rank, 1, "failed")],
)
def test_what_ends_a_job_early_changes_nothing(
    cluster: Path,
    settings: list[str],
    undisturbed: list[dict[str, float]],
    tmp_path: Path,
    disturb: Callable[[Path, str], None],
    code: int,
    cause: str,
) -> None:
    run = tmp_path / "run"
    words = ("--launch", "slurm", "--nproc", 2, "--slurm", "time=30", "--slurm", "partition=low")
    assert "job" in succeed("train", *settings, *LONG, "--out", run, *words)
    folder = LaunchFolder(run)
    wait_until(lambda: (run / "checkpoints/step-00000100").exists())
    disturb(run, folder.last().job_ids[0])
    wait_until(lambda: len(folder.attempts()) == 2)
    first, second = folder.attempts()
    assert (first["code"], first["then"], second["code"]) == (code, "requeued", 0)
    assert cause in first["cause"]
    assert metric_lines(run) == undisturbed
