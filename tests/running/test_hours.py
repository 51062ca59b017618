"""Training for a given time: `pretrainkit train --hours`."""

import json
from pathlib import Path

import pytest

import pretrainkit
from pretrainkit.api import resolve_config
from pretrainkit.errors import InputError
from support import SUPPORT, remedies
from support import page_data as data
from support.page_data import BERT, copy
from support.page_runner import run_here, within
from support.warm_python import run_warm

pytestmark = pytest.mark.slow

HOURS = 0.0006
WORDS = f"bert/tiny data.train=tokens/train data.valid=tokens/valid {BERT} log.every_steps=1".split()


@pytest.fixture
def folder(tmp_path):
    copy("tokens", tmp_path / "tokens")
    with within(tmp_path):
        yield tmp_path


def summary(run: Path) -> dict:
    return json.loads((run / "summary.json").read_bytes())


def test_a_trial_prints_how_many_steps_fit_and_the_same_command_resumes_with_them(folder):
    command = ["train", *WORDS, "--hours", str(HOURS), "--resume", "--out", "run"]
    ended = run_here(command)
    assert ended.code == 0, ended.err
    assert "trial" in ended.err
    config = resolve_config("run/config.yaml").config
    sources = json.loads(Path("run/provenance.json").read_bytes())["sources"]
    before = summary(Path("run"))
    assert before["steps"] == config.num_steps
    assert sources["num_steps"].startswith(f"--hours {HOURS:g}: a step took ")
    # Everything that depends on the length of the run follows it, and the rest is as it was written.
    assert config.checkpoint.every_steps == config.evaluate.every_steps >= config.num_steps / 10
    assert config.schedule.num_warmup_steps <= 0.1 * config.num_steps
    assert config.log.every_steps == 1
    assert sorted(path.name for path in folder.iterdir() if "trial" in path.name) == []

    data.killed("run")(folder)
    Path("run/summary.json").unlink()
    ended = run_here(command)
    assert ended.code == 0, ended.err
    assert "trial" not in ended.err
    assert "resumed" in ended.err
    after = summary(Path("run"))
    assert (after["steps"], after["loss"]) == (before["steps"], before["loss"])
    assert "nothing is left to do" in run_here(command).err

    refused = run_here([*command, "--hours", "7"])
    assert refused.code == 2
    message = refused.err.partition("error: ")[2]
    advice = remedies.followed(message, "running/hours.py: … was started with …, not with --hours")
    first, second = (line.partition("pretrainkit ")[2].split() for line in advice.strip().splitlines())
    assert run_here(first).code == 0
    assert run_here(second).code == 0
    assert summary(Path("run"))["steps"] == 2 * before["steps"]


def test_settings_of_the_user_are_kept_and_passes_over_the_data_limit_the_steps(folder):
    more = ["num_steps=null", "data.num_epochs=0.5", "checkpoint.every_steps=3", "evaluate.every_epochs=0.5"]
    ended = run_here(["train", *WORDS, *more, "schedule.num_warmup_steps=1", "--hours", "5", "--out", "run"])
    assert ended.code == 0, ended.err
    assert "data.num_epochs=0.5 ends it earlier" in ended.err
    config = resolve_config("run/config.yaml").config
    sources = json.loads(Path("run/provenance.json").read_bytes())["sources"]
    assert config.checkpoint.every_steps == 3
    assert config.schedule.num_warmup_steps == 1
    assert not sources["evaluate.every_steps"].startswith("--hours")


def test_a_number_of_steps_and_hours_exclude_each_other(folder):
    command = ["train", *WORDS, "--out", "run"]
    refused = run_here([*command, "num_steps=5", "--hours", "1"])
    assert refused.code == 2
    advice = remedies.followed(refused.err.partition("error: ")[2], "running/hours.py: num_steps=… (…) and --hours")
    assert "leave out --hours" in advice
    assert "remove num_steps" in advice
    assert run_here([*command, "num_steps=2", "schedule.num_warmup_steps=1"]).code == 0
    assert run_here([*command[:-1], "other", "--hours", str(HOURS)]).code == 0


def test_a_warning_of_the_trial_is_not_printed_again_by_the_run(folder):
    copy("bert", folder / "bert")
    start = ["init_from=bert", "init.unexpected=ignore", "objective.sentence_order=false"]
    words = ["train", *WORDS, *start, "--hours", str(HOURS), "--out", "run"]
    ended = run_warm(SUPPORT / "one_command.py", *words)  # a process that has no log handler of pytest
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("tensors of the checkpoint are not used") == 1


def test_hours_are_of_one_process(folder, monkeypatch):
    command = ["train", *WORDS, "--hours", "1", "--out", "run"]
    plain = [*(word for word in command if word not in ("--hours", "1")), "num_steps=2", "schedule.num_warmup_steps=1"]
    refused = run_here([*command, "--launch", "local", "--nproc", "1"])
    assert refused.code == 2
    advice = remedies.followed(refused.err.partition("error: ")[2], "cli/train.py: --hours measures the speed of this")
    assert "set num_steps=N" in advice
    assert "pretrainkit plan" in advice
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError) as caught:
        pretrainkit.train(pretrainkit.load_config(WORDS[0], WORDS[1:]), "run", hours=1)
    assert "num_steps=N" in remedies.followed(caught.value, "running/hours.py: --hours measures the speed of one")
    monkeypatch.delenv("WORLD_SIZE")
    assert run_here(plain).code == 0
