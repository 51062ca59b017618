"""A rank that is killed or hangs: within seconds all start again by themselves, and the losses are those of a run that
was never touched."""

import os
import sys
from pathlib import Path

import pytest

from pretrainkit.launch.folder import Launch, LaunchFolder
from pretrainkit.launch.local import launch_local
from support import SUPPORT
from support.command_line import NO_DROPOUT, losses, pretrainkit, refused, succeed
from support.remedies import followed

MOST_SECONDS = 30
"""Until all ranks have ended after one was killed."""


@pytest.mark.slow
def test_a_rank_that_is_killed_or_hangs_is_reported_and_all_start_again_with_the_same_losses(
    settings: list[str],
    finished_without_dropout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Killed before step 8 as if memory were used up; hangs before step 11."""
    run = tmp_path / "run"
    source = Path(sys.modules["pretrainkit"].__path__[0]).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SUPPORT.parent), str(source)]))
    monkeypatch.setenv("STEP_TIMES", str(tmp_path / "times"))
    monkeypatch.setenv("STOP_RANK", "1")
    words = ["train", *settings, *NO_DROPOUT, "checkpoint.asynchronous=false", "checkpoint.keep_last=9"]
    words += ["--out", str(run), "--resume"]
    first, again = ("SIGKILL", "8", *words), ("HANG", "11", *words)
    launch = Launch("local", first, again, processes_per_node=2, max_restarts=2, hang_minutes=0.25)
    assert launch_local(launch, run, module="support.stopped_training") == 0
    attempts = LaunchFolder(run).attempts()
    assert [row["checkpoint"] for row in attempts] == ["step-00000004", "step-00000008", "step-00000012"]
    rows = [line.split() for line in (tmp_path / "times").read_text().splitlines()]
    assert [int(step) for _, step in rows] == [*range(1, 8), *range(5, 11), *range(9, 13)]
    assert attempts[0]["time"] - float(rows[6][0]) < MOST_SECONDS
    # Two ranks add in another order than one.
    assert losses(run) == pytest.approx(losses(finished_without_dropout), rel=1e-5)
    assert [path.name for path in sorted((run / "logs").iterdir())] == ["rank-0.log", "rank-1.log"]
    shown = capfd.readouterr().err
    assert "Traceback" not in shown
    assert shown.count("was killed by SIGKILL") == 1
    assert "error: rank 1 was killed by SIGKILL" in shown
    assert "no rank finished an update for 0.25 minutes" in caplog.text
    assert "in all_reduce" in (run / "logs/rank-0.log").read_text()  # where it waits for the other
    assert "in strike" in (run / "logs/rank-1.log").read_text()


def test_options_of_launching_that_do_not_go_together_are_refused(settings: list[str], tmp_path: Path) -> None:
    words = ("train", *settings, "--out", tmp_path / "run")
    assert "uses only this machine, and --nodes is 2" in refused(*words, "--launch", "local", "--nodes", 2)
    assert "has an effect only with --launch slurm" in refused(*words, "--slurm", "partition=gpu")
    assert "has an effect only with --launch slurm" in refused(*words, "--sweep", "seed=0,1")
    assert "has an effect only with --launch cloud" in refused(*words, "--launch", "local", "--dry-run")
    assert "closest: partition" in refused(*words, "--launch", "slurm", "--slurm", "partitions=gpu")
    assert "differ" in refused(*words, "--launch", "slurm", "--gpus-per-node", 2, "--nproc", 4)
    assert "bucket" in refused(*words, "--launch", "cloud")
    alone = refused(*words, "--elastic", "1:4")
    assert "--launch local --meet localhost:29500" in followed(alone, "cli/options.py: --elastic … needs")
    local = ("--launch", "local", "--meet", "localhost:1", "--elastic")
    assert "--elastic 1:4" in followed(refused(*words, *local, "4:1"), "cli/options.py: --elastic is")
    assert "cannot be split over 3 ranks" in refused(*words, *local, "3:4")
    assert "needs more than one rank" in refused(*words, "--launch", "slurm", "parallel.strategy=hsdp")
    for launch in (["local", "--nproc", 2], ["slurm"], ["cloud", "--cloud", "bucket=s3://mine", "--dry-run"]):
        place = ("train", *settings, "--out", "/proc/nowhere/run", "--launch", *launch)
        assert "another run folder" in refused(*place)
    assert not (tmp_path / "run").exists()
    assert "was not launched" in refused("launch", "status", tmp_path)


def test_data_of_this_machine_are_not_sent_to_look_for_on_another(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokens").mkdir()
    monkeypatch.chdir(tmp_path)
    launch = ("--launch", "cloud", "--cloud", "bucket=s3://mine", "--dry-run")
    words = ("train", *settings, "data.valid=", "--out", tmp_path / "run", *launch)
    message = refused(*words, "data.train=tokens")
    assert "data.train" in message
    assert "/bucket/" in message
    assert not (tmp_path / "run").exists()
    assert "sky launch" in succeed(*words, "data.train=/bucket/tokens")


def test_a_plan_names_memory_time_cost_and_indivisible_sizes(settings: list[str]) -> None:
    shown = succeed("plan", *settings, "--gpus", 4, "--hardware", "h200", "--price", 3)
    assert "4 x NVIDIA H200" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.endswith("fits")] == ["ddp", "fsdp2", "hsdp"]
    assert "dry run of fsdp2 on 4 ranks" in shown
    assert "dry run of hsdp on 4 ranks" in succeed("plan", *settings, "--gpus", 4, "--gpus-per-node", 2)
    hsdp = ("parallel.strategy=hsdp", "--gpus", 8, "--no-dry-run")
    assert "8 devices are not a whole number of machines" in refused("plan", *settings, *hsdp, "--gpus-per-node", 3)
    assert "one of: 2, 4, 8" in refused("plan", *settings, *hsdp, "parallel.shard_ranks=3")
    assert "at that price" in shown
    refusal = pretrainkit("plan", *settings, "--gpus", 3, "--hardware", "h200", "--no-dry-run")
    assert refusal.code == 2
    assert "data.batch_size=6 or 9" in refusal.err
    assert "h100" in refused("plan", *settings, "--hardware", "h1000")
    assert "--price 3.5" in refused("plan", *settings, "--price", -1)
