"""`pretrainkit launch status|logs|cancel|resume` of ranks on this machine, which only report that they run."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pretrainkit.cli.launch import app
from pretrainkit.cli.main import app_of
from pretrainkit.config.yaml import parse_yaml
from pretrainkit.errors import InputError
from pretrainkit.launch.folder import Launch, LaunchFolder
from support.remedies import followed

RANK_MODULE = """
import os, signal, sys, time
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
print("rank", os.environ["RANK"], "waits", flush=True)
open(f"{sys.argv[1]}/ready-{os.environ['RANK']}", "w").close()
deadline = time.monotonic() + 60
while not stopped and time.monotonic() < deadline:
    time.sleep(0.05)
sys.exit(130)
"""
LAUNCHER = """
import sys
from pathlib import Path
from pretrainkit.launch.local import Launch, launch_local
launch = Launch("local", (sys.argv[1], "data.train=/a b"), (), processes_per_node=2)
sys.exit(launch_local(launch, Path(sys.argv[1], "run"), module="verbs_rank"))
"""


def say(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_a_launch_is_looked_at_and_ended(rank_module: Callable[[str, str], Path]) -> None:
    folder = rank_module("verbs_rank", RANK_MODULE)
    run = folder / "run"
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(folder)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not all((folder / f"ready-{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert json.loads(say("status", run, "--json"))["jobs"] == {str(launcher.pid): "RUNNING"}
    assert "2 ranks" in say("status", run)
    assert f"pretrainkit {folder} 'data.train=/a b'\n" in say("status", run)
    shown = say("logs", run)
    assert "rank 0 waits" in shown
    assert "rank 1 waits" in shown
    assert "rank 0 waits" not in say("logs", run, "--rank", 1)
    with pytest.raises(InputError, match="no such log"):
        say("logs", run, "--rank", 2)
    jobs = [{"run": str(run), "kind": "local", "jobs": [str(launcher.pid)]}]
    assert json.loads(say("cancel", run, "--json")) == {"cancelled": jobs}
    assert launcher.wait(60) == 130
    assert "ended with 130 (stopped by a signal) after no checkpoint: ended" in say("status", run)
    with pytest.raises(InputError, match=r"is not running\n.*resume .* --launch same"):
        say("cancel", run)


def test_elastic_machines_run_as_long_as_one_of_them_does(tmp_path: Path) -> None:
    folder = LaunchFolder(tmp_path / "run")
    with folder.held(shared=True):
        for pid in "12":  # the second machine leaves again
            folder.add(Launch("local", (), (), job_ids=(pid,), elastic="1:2"))
        folder.record_end("2", 130, "stopped by a signal", "ended")
        shown = say("status", folder.run)
        assert "1 rank on each of 1:2 machines" in shown
        assert "  machines: RUNNING\n" in shown
        assert json.loads(say("status", folder.run, "--json"))["jobs"] == {"machines": "RUNNING"}
    assert "  machines: ended\n" in say("status", folder.run)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands of ranks of this machine, which do not run: they end as by Ctrl-C."""
    commands: list[list[str]] = []

    def interrupted(launch: Launch, folder: LaunchFolder, words: list[str], logs: Path) -> tuple[int, bool]:
        commands.append(words)
        return 130, True

    monkeypatch.setattr("pretrainkit.launch.local._run_ranks", interrupted)
    return commands


def test_ranks_of_this_machine_resume_with_their_original_config_from_any_folder(
    tmp_path: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shards").mkdir()
    file = Path("mine.yaml")
    file.write_text("extends: bert/tiny\nnum_steps: 700\ndata: {train: shards}\n")
    words = [str(file), "seed=3", "--out", "run", "--launch", "local", "--nproc", "2"]
    assert CliRunner().invoke(app_of("train"), words).exit_code == 130
    file.unlink()
    with pytest.raises(InputError, match="is not running") as error:
        say("cancel", "run")
    assert "resume run --launch same" in followed(error.value, "cli/launch.py: … is not running")
    monkeypatch.chdir("shards")
    assert CliRunner().invoke(app, ["resume", str(tmp_path / "run")]).exit_code == 130
    first, again = started[:2]
    assert again == [*first, "--resume"]
    for alias, *words in ((app, "resume", "--json"), (app_of("resume"), "--launch", "same", "--json")):
        answered = CliRunner().invoke(alias, [*words, str(tmp_path / "run")])
        assert answered.exit_code == 130
        (resumed,) = json.loads(answered.stdout)["resumed"]
        assert (resumed["run"], resumed["kind"]) == (str(tmp_path / "run"), "local")
    assert started[2:] == [again, again]
    config = parse_yaml(Path(first[first.index("train") + 1]).read_text(), "config.yaml")
    assert (config["num_steps"], config["seed"]) == (700, 3)
    assert str(tmp_path / "shards") in str(config["data"]["train"])
    assert first[first.index("--out") + 1] == str(tmp_path / "run")


def test_a_run_that_moved_or_was_copied_resumes_at_its_present_place(tmp_path: Path, started: list[list[str]]) -> None:
    here, copy, there = (tmp_path / name for name in ("here", "copy", "there"))
    (here / "shards").mkdir(parents=True)
    words = ["bert/tiny", f"data.train={here / 'shards'}", "--out", str(here / "run"), "--launch", "local"]
    assert CliRunner().invoke(app_of("train"), words).exit_code == 130
    shutil.copytree(here, copy)
    shutil.move(here, there)
    for place in (copy, there, there):
        assert CliRunner().invoke(app, ["resume", str(place / "run")]).exit_code == 130
        words = started[-1]
        assert words[words.index("--out") + 1] == str(place / "run")
        assert not [word for word in words if str(here) in word]
        config = parse_yaml(Path(words[words.index("train") + 1]).read_text(), "config.yaml")
        assert str(place / "shards") in str(config["data"]["train"])


def test_neighbouring_runs_are_not_a_sweep(tmp_path: Path) -> None:
    for number, kind in enumerate(("slurm", "local")):
        LaunchFolder(tmp_path / str(number)).add(Launch(kind, (), (), job_ids=("1",)))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is not a sweep"):
        say("resume", tmp_path)


def test_a_finished_run_is_not_launched_again(tmp_path: Path) -> None:
    folder = LaunchFolder(tmp_path)
    folder.add(Launch("local", (), (), job_ids=("1",)))
    (tmp_path / "checkpoints/step-00000012").mkdir(parents=True)
    folder.record_end("1", 0, "done", "ended")
    assert "is complete: step-00000012; to train longer: " in say("resume", tmp_path)
    assert json.loads(say("resume", tmp_path, "--json")) == {"resumed": []}
    assert len(folder.launches()) == 1
