"""A run that is killed after its last checkpoint is completed on resuming; a complete run is unchanged."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from support import SUPPORT
from support.command_line import files_below, pretrainkit, refused, succeed
from support.warm_python import run_warm

KILLER = SUPPORT / "stopped_training.py"
END = ("eval.jsonl", "summary.json", "samples.json")


def contents(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in files_below(run) if (run / name).is_file()}


def last_evaluation_removed(run: Path) -> None:
    lines = (run / "eval.jsonl").read_text().splitlines(keepends=True)
    assert json.loads(lines[-1])["step"] == 12
    (run / "eval.jsonl").write_text("".join(lines[:-1]))


@pytest.mark.parametrize("command", ["resume", "train"])
@pytest.mark.parametrize("gone", [END, ("summary.json", "samples.json"), ("summary.json",)])
def test_missing_work_at_the_end_is_done_on_resuming(
    command: str, gone: tuple[str, ...], settings: list[str], finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    for name in gone:
        last_evaluation_removed(run) if name == "eval.jsonl" else (run / name).unlink()
    words = [*settings, "ema_decay=0.9", "checkpoint.keep_last=9", "--resume", "--out"]
    succeed(command, *(words if command == "train" else []), run)
    assert {name: (run / name).read_bytes() for name in END} == {name: (finished / name).read_bytes() for name in END}
    events = [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert events[-2:] == ["resumed", "finished"]


def test_a_torn_checkpoint_is_warned_of_once(finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (part,) = (run / "checkpoints" / "step-00000012").glob("*.safetensors")
    part.write_bytes(part.read_bytes()[:-9])
    succeed("resume", run)
    assert [line for line in caplog.messages if "skipping checkpoint" in line][1:] == []
    assert "step-00000012" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("point", ["checkpoint", "finished"])
def test_a_run_killed_after_its_last_checkpoint_is_completed(
    point: str, settings: list[str], finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = [*settings, "ema_decay=0.9", "checkpoint.keep_last=9"]
    killed = run_warm(KILLER, "SIGKILL", f"{point}:12", "train", *words, "--out", run)
    assert killed.returncode == -9
    assert not (run / "summary.json").exists()
    succeed("resume", run)
    assert (run / "eval.jsonl").read_bytes() == (finished / "eval.jsonl").read_bytes()
    clock = re.compile("second|share|mfu|memory")
    numbers = [json.loads((one / "summary.json").read_text()) for one in (run, finished)]
    assert len({str({k: v for k, v in one.items() if not clock.search(k)}) for one in numbers}) == 1
    assert (run / "samples.json").read_bytes() == (finished / "samples.json").read_bytes()


@pytest.mark.parametrize("command", ["resume", "train"])
def test_a_complete_run_is_left_as_it_is_and_reports_success(
    command: str, settings: list[str], finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    before = contents(run)
    words = [*settings, "ema_decay=0.9", "checkpoint.keep_last=9", "--resume", "--out"]
    answer = pretrainkit(command, *(words if command == "train" else []), run)
    assert (answer.code, len(answer.err.splitlines())) == (0, 1), answer.err
    assert "nothing is left to do; to train longer: " in answer.err
    assert contents(run) == before
    *_, longer = shlex.split(answer.err)
    succeed("resume", run, longer)
    assert json.loads((run / "summary.json").read_text())["steps"] == 24


def test_a_complete_run_needs_its_data_no_longer(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("/tokens/", "/gone/"))
    assert " complete: " in pretrainkit("resume", run).err


def test_settings_that_come_too_late_are_refused_and_the_advice_works(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    before = contents(run)
    message = refused("resume", run, "optimizer.peak_lr=1e-3")
    assert "is finished at step 12" in message
    assert "optimizer.peak_lr" in message
    assert contents(run) == before
    advice = shlex.split(message.rpartition("pretrainkit ")[2])
    succeed(*advice)


def test_changed_settings_leave_an_event_and_are_in_the_report(
    settings: list[str], finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    words = [*settings, "ema_decay=0.9", "checkpoint.keep_last=9"]
    succeed("train", *words, "schedule.num_warmup_steps=5", "num_steps=16", "--resume", "--out", run)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    (changed,) = [event for event in events if event["event"] == "changed"]
    assert changed["step"] == 12
    assert changed["text"] == "num_steps from 12 to 16; schedule.num_warmup_steps from 2 to 5"
    (resumed,) = json.loads((run / "provenance.json").read_text())["resumed"]
    assert resumed["changes"] == {"num_steps": [12, 16], "schedule.num_warmup_steps": [2, 5]}
    succeed("report", run)
    page = (run / "report.html").read_text()
    assert "2 until step 12" in page
    assert changed["text"] in page


def test_a_run_that_continues_has_no_summary_of_its_earlier_end(
    settings: list[str], finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    killed = run_warm(KILLER, "SIGKILL", "13", "resume", run, "num_steps=20")
    assert killed.returncode == -9
    assert not (run / "summary.json").exists()
    assert "nothing is left to do" not in pretrainkit("resume", run).err
    assert json.loads((run / "summary.json").read_text())["steps"] == 20
