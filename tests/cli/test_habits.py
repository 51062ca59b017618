"""Conventions of every command: completion, --json, -q and -v, and options with one meaning."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from pretrainkit.cli import main
from support.command_line import pretrainkit, refused, succeed
from support.page_data import BERT, QUICK, copy

SEVERAL_MEANINGS = {"--dry-run", "--format", "--gpus-per-node", "--nproc", "--revision", "--slurm"}
"""Options that mean different things in different commands."""


def leaves():
    group = get_command(main.app)
    for verb in main.VERBS:
        command = group.get_command(None, verb)
        for name, leaf in (getattr(command, "commands", None) or {"": command}).items():
            yield f"{verb} {name}".strip(), {option for param in leaf.params for option in param.opts}


def test_every_command_has_the_common_options_and_json():
    common = {"--quiet", "-q", "--verbose", "-v", "--debug", "--json"}
    assert not [name for name, own in leaves() if not common <= own]


def helps():
    """Every command with its help, as a terminal of 100 columns shows it in one line."""
    group = get_command(main.app)
    for verb in main.VERBS:
        command = group.get_command(None, verb)
        for name, leaf in {"": command, **getattr(command, "commands", {})}.items():
            words = f"{verb} {name}".strip()
            shown = succeed(*words.split(), "--help")
            yield words, leaf, " ".join(re.sub("[│╭╮╰╯─]", " ", shown).split())


def test_every_help_has_an_example_and_whole_sentences():
    for words, command, shown in helps():
        assert f"Example: pretrainkit {words.split()[0]} " in shown, words
        for leaf in getattr(command, "commands", {}).values():
            first = " ".join(leaf.help.split("\n\n")[0].split())
            assert first.endswith("."), (words, first)
            assert first in shown, (words, first)
        for param in command.params:
            text = " ".join((getattr(param, "help", None) or "").split())
            assert not text or (text[-1] in ".]" and (text[0].isupper() or ":" in text or ";" in text)), (words, text)


def test_an_option_is_in_the_same_panel_in_all_commands():
    panels: dict[str, set[str]] = {}
    for _, command, _ in helps():
        for param in command.params:
            panel = getattr(param, "rich_help_panel", None) or "Options"
            if not re.match("BERT|CLIP|T5|4M", panel):
                for option in param.opts:
                    panels.setdefault(option, set()).add(panel)
    assert {option for option, titles in panels.items() if len(titles) > 1} == SEVERAL_MEANINGS


def test_data_has_one_meaning():
    helps_of_data = {
        (param.metavar, param.help)
        for _, command, _ in helps()
        for param in command.params
        if "--data" in param.opts and not param.hidden
    }
    assert [metavar for metavar, _ in helps_of_data] == ["NAME=DIR"]


def test_sweeps_of_fine_tuning_and_of_launches_name_each_other():
    shown = {words: text for words, _, text in helps()}
    assert "`pretrainkit train --sweep PATH=A,B`" in shown["sweep"]
    assert "`pretrainkit sweep`" in shown["train"]
    assert "`pretrainkit sweep`" in shown["finetune"]


@pytest.fixture
def training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy("tokens", tmp_path / "tokens")
    return ["train", "bert/mini", "data.train=tokens/train", *BERT.split(), *QUICK.split(), "num_steps=4"]


def test_quiet_prints_no_progress_and_verbose_every_step(training):
    assert pretrainkit(*training, "--out", "quiet", "-q").err == ""
    shown = pretrainkit(*training, "--out", "verbose", "--verbose", "checkpoint.every_steps=2").err
    assert [f"step {step:>7,}  loss" in shown for step in (1, 2, 3, 4)] == [True] * 4
    assert "step       2  checkpoint: " in shown
    message = refused(*training, "--out", "both", "-q", "-v")
    assert message == "error: -q and -v exclude each other\n  give one of them\n"
    succeed(*training, "--out", "both", "-q")
    Path("text.txt").write_text("A text.\n", encoding="utf-8")
    assert pretrainkit("corpus", "stats", "text.txt", "-q").err == ""


def test_written_files_are_reported_as_json(training):
    succeed(*training, "--out", "run", "-q")
    assert json.loads(succeed("export", "run", "--out", "exported", "--json")) == {"out": "exported"}
    assert json.loads(succeed("report", "run", "--json", "--curve", "c.svg")) == {
        "out": "run/report.html",
        "curve": "c.svg",
    }
    assert json.loads(succeed("config", "check", "bert/tiny", "data.train=tokens/train", "--json"))["ranks"] == 1


def test_plan_takes_hardware_and_still_its_former_name():
    words = ("plan", "bert/mini", "num_steps=5", "--no-dry-run", "--json")
    former = pretrainkit(*words, "--device", "l4")
    assert former.err == "note: --device of plan is now called --hardware; write --hardware l4\n"
    assert json.loads(former.out) == json.loads(succeed(*words, "--hardware", "l4"))


@pytest.mark.parametrize(("words", "answer"), [("tra", "train"), ("train --la", "--launch"), ("config sc", "schema")])
def test_the_shell_completes_verbs_and_options(words, answer):
    own = {"COMP_WORDS": f"pretrainkit {words}", "COMP_CWORD": str(len(words.split()))}
    environment = os.environ | own | {"_PRETRAINKIT_COMPLETE": "complete_bash"}
    command = [sys.executable, "-c", "from pretrainkit.cli.main import main; main()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [answer]
