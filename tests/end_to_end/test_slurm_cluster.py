"""Pre-emptions, time limits, killed ranks, two nodes and arrays under a real SLURM: the same losses, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pretrainkit.launch.folder import LaunchFolder
from pretrainkit.launch.slurm import living_job
from support import slurm_cluster
from support.command_line import metric_lines, refused, succeed

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
    return of_two_ranks(tmp_path_factory.mktemp("undisturbed") / "run", *settings, *LONG)


def of_two_ranks(run: Path, *words: str) -> list[dict[str, float]]:
    """Metrics of a run of two ranks that nothing happens to."""
    command = ["train", *words, "--out", str(run), "--launch", "local", "--nproc", "2"]
    subprocess.run([sys.executable, "-m", "pretrainkit", *command], check=True, capture_output=True, timeout=500)
    return metric_lines(run)


def wait_until(is_so: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def preempt(run: Path, job_id: str) -> None:
    subprocess.run(["sbatch", "--partition=high", "--ntasks=2", "--output=/dev/null", "--wrap=sleep 1"], check=True)


def kill_a_rank(run: Path, job_id: str) -> None:
    os.kill(int((run / "logs/rank-1.pid").read_text()), signal.SIGKILL)


ONE_NODE = ("--nproc", 2, "--slurm", "partition=low")
TWO_NODES = ("--nodes", 2, "--nproc", 1, "--slurm", "partition=both")


@pytest.mark.parametrize(
    ("disturb", "code", "cause", "place"),
    [
        (preempt, 130, "a pre-emption", ONE_NODE),
        (kill_a_rank, 1, "failed", ONE_NODE),
        (kill_a_rank, 1, "failed", TWO_NODES),
    ],
)
def test_an_early_end_of_a_job_changes_nothing(
    cluster: Path,
    settings: list[str],
    undisturbed: list[dict[str, float]],
    tmp_path: Path,
    disturb: Callable[[Path, str], None],
    code: int,
    cause: str,
    place: tuple[object, ...],
) -> None:
    run = tmp_path / "run"
    assert "job" in succeed("train", *settings, *LONG, "--out", run, "--launch", "slurm", "--slurm", "time=30", *place)
    folder = LaunchFolder(run)
    wait_until(lambda: (run / "checkpoints/step-00000100").exists())
    disturb(run, folder.last().job_ids[0])
    wait_until(lambda: len(folder.attempts()) == 2)
    first, second = folder.attempts()
    assert (first["code"], first["then"], second["code"]) == (code, "requeued", 0)
    assert cause in first["cause"]
    assert metric_lines(run) == undisturbed


def test_a_run_that_is_longer_than_its_time_limit_resumes_exactly(
    cluster: Path, settings: list[str], tmp_path: Path
) -> None:
    run, steps = tmp_path / "run", ("num_steps=3000", "checkpoint.every_steps=1000", "evaluate.every_steps=5000")
    # SLURM looks at its clock once a minute: the job gets the signal between 55 and 115 seconds after it began.
    words = ("--launch", "slurm", *ONE_NODE, "--slurm", "time=2", "--slurm", "signal_seconds=5")
    succeed("train", *settings, *steps, "--out", run, *words)
    expected = of_two_ranks(tmp_path / "undisturbed", *settings, *steps)
    folder = LaunchFolder(run)
    wait_until(lambda: folder.is_finished, 900)
    *before, _ = [(row["code"], row["cause"], row["then"]) for row in folder.attempts()]
    assert before
    assert set(before) == {(130, "its time limit", "requeued")}
    assert metric_lines(run) == expected


def test_runs_of_a_sweep_are_an_array_and_resume_one_by_one(cluster: Path, settings: list[str], tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    words = ("--launch", "slurm", "--slurm", "time=30", "--sweep", "seed=0,1,2")
    told = succeed("train", *settings, *LONG, "--out", sweep, *words)
    runs = [sweep / f"seed={seed}" for seed in range(3)]
    folders = [LaunchFolder(run) for run in runs]
    job_ids = [folder.last().job_ids[0] for folder in folders]
    assert len({job_id.partition("_")[0] for job_id in job_ids}) == 1, told
    assert "in the queue" in refused("launch", "resume", runs[2])

    # Two run, the third waits: one is pre-empted, the one that waits is cancelled.
    wait_until(lambda: all((run / "checkpoints/step-00000050").exists() for run in runs[:2]))
    succeed("launch", "cancel", runs[2])
    subprocess.run(["sbatch", "--partition=high", "--ntasks=1", "--output=/dev/null", "--wrap=sleep 1"], check=True)
    wait_until(lambda: all(folder.is_finished for folder in folders[:2]))
    causes = [[row["cause"] for row in folder.attempts()] for folder in folders]
    assert sorted(causes[:2]) == [["a pre-emption", "done"], ["done"]]
    assert causes[2] == []
    states = [json.loads(line)["jobs"] for line in succeed("launch", "status", sweep, "--json").splitlines()]
    assert [state.split()[0] for state in states[2].values()] == ["CANCELLED"]
    assert "rank-0.log" in succeed("launch", "logs", sweep)

    # Only unfinished jobs continue.
    wait_until(lambda: living_job(folders[0]) is None and living_job(folders[1]) is None)
    told = succeed("launch", "resume", sweep)
    assert "seed=2" in told
    assert "seed=1" not in told
    wait_until(lambda: folders[2].is_finished)
    assert "is complete or in the queue" in succeed("launch", "resume", sweep)
    assert "already holds a run" in refused("train", *settings, *LONG, "--out", sweep, *words)
    for seed, run in enumerate(runs):
        succeed("train", *settings, *LONG, f"seed={seed}", "--out", tmp_path / f"alone-{seed}")
        assert metric_lines(run) == metric_lines(tmp_path / f"alone-{seed}")
