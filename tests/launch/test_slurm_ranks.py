"""Jobs through submitit's processes on this machine: ranks find each other; after a warning the job continues."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pretrainkit.errors import InputError
from pretrainkit.launch.folder import Launch, LaunchFolder
from pretrainkit.launch.slurm import submit as submit_runs
from pretrainkit.launch.slurm_rank import RankJob

pytestmark = pytest.mark.slow

submitit = pytest.importorskip("submitit")

RANK_MODULE = """
import os, signal, sys, time
from pathlib import Path
folder, mode = Path(sys.argv[1]), sys.argv[2]
rank = os.environ["RANK"]
with open(folder / f"seen-{rank}", "a") as file:
    names = ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    file.write(" ".join(os.environ[name] for name in names) + "\\n")
attempts = len((folder / f"seen-{rank}").read_text().splitlines())
checkpoint = folder / "run/checkpoints" / f"step-{attempts:08d}"
if mode == "wait" and attempts == 1:
    stopped = []
    signal.signal(signal.SIGUSR2, lambda *_: stopped.append(1))
    (folder / f"ready-{rank}").touch()
    deadline = time.monotonic() + 30
    while not stopped and time.monotonic() < deadline:
        time.sleep(0.05)
    checkpoint.mkdir(parents=True, exist_ok=True)
    sys.exit(130)
if mode == "refuse":
    sys.exit(2)
"""


@pytest.fixture
def folder(rank_module: Callable[[str, str], Path]) -> Path:
    return rank_module("slurm_trivial_rank", RANK_MODULE)


def submit(folder: Path, mode: str):
    run = folder / "run"
    LaunchFolder(run).add(Launch("slurm", (), (), 1, 2))
    executor = submitit.AutoExecutor(folder=str(run / "launch/jobs"), cluster="local")
    executor.update_parameters(tasks_per_node=2, timeout_min=2, stderr_to_stdout=True)
    return executor.submit(RankJob((str(folder), mode), str(run), 3, 9, module="slurm_trivial_rank"))


def wait_for(*paths: Path) -> None:
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, f"waited in vain for {paths}"
        time.sleep(0.05)


def ended(folder: Path, count: int) -> list[tuple[int, str]]:
    deadline = time.monotonic() + 60
    while len(rows := LaunchFolder(folder / "run").attempts()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [(row["code"], row["then"]) for row in rows]


def test_two_tasks_are_two_ranks_that_know_one_address(folder: Path) -> None:
    job = submit(folder, "done")
    assert job.results() == [0, 0]
    (first,), (second,) = ((folder / f"seen-{rank}").read_text().splitlines() for rank in (0, 1))
    assert first.split()[:2] == ["2", "0"]
    assert second.split()[:2] == ["2", "1"]
    assert first.split()[2:] == second.split()[2:]
    assert ended(folder, 1) == [(0, "ended")]


def test_after_the_warning_of_a_time_limit_the_job_runs_again(folder: Path) -> None:
    job = submit(folder, "wait")
    wait_for(folder / "ready-0", folder / "ready-1")
    job._process.terminate()  # the controller hands it on to all tasks
    assert ended(folder, 2) == [(130, "requeued"), (0, "ended")]
    job._process.wait(60)  # rank 0 speaks for the job, and may be done before rank 1
    assert len((folder / "seen-1").read_text().splitlines()) == 2


def test_a_refused_command_is_not_tried_again(folder: Path) -> None:
    job = submit(folder, "refuse")
    assert ended(folder, 1) == [(2, "ended")]
    job._process.wait(60)
    assert len((folder / "seen-0").read_text().splitlines()) == 1


def test_a_path_with_a_sign_that_slurm_replaces_in_paths_of_logs_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "lr%j"
    with pytest.raises(InputError, match=r"lr%j has a % in its path, .*\n  use a folder without %"):
        submit_runs([run], [Launch("slurm", ("train",), ("train",), 1, 1)], run, name="x", cluster="local")
    assert not run.exists()
