"""Microbatches that fit: computed before the first step, or named after a step that ran out of memory."""

import shlex
from pathlib import Path

import pytest
import torch

import pretrainkit as pk
from pretrainkit.api import make_plan
from pretrainkit.dist import devices
from pretrainkit.dist.devices import Device
from pretrainkit.running.plan import Plan
from pretrainkit.training.trainer import Trainer
from support.command_line import NO_DROPOUT, losses, refused, succeed
from support.remedies import followed

pytestmark = pytest.mark.slow


@pytest.fixture
def words(settings: list[str]) -> list[str]:
    return ["train", *settings, *NO_DROPOUT, "num_steps=6"]


def has_memory(monkeypatch: pytest.MonkeyPatch, num_bytes: float) -> None:
    monkeypatch.setattr(devices, "described", lambda device: Device("cpu", "small", int(num_bytes)))


def needed(words: list[str], examples: int) -> float:
    """Planned bytes of the run with microbatches of this many examples."""
    plan = make_plan(pk.load_config(words[1], [*words[2:], f"data.microbatch_size={examples}"]), device="cpu")
    return plan.memory["ddp"].total


def test_the_largest_microbatch_that_fits_gives_the_same_run(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*words, "data.batch_size=64", "num_steps=3"]
    whole, fitted, small = tmp_path / "whole", tmp_path / "fitted", tmp_path / "small"
    succeed(*words, "parallel.fit=auto", "--out", whole)
    assert pk.load_config(str(whole / "config.yaml")).data.microbatch_size is None
    between = (needed(words, 16) + needed(words, 32)) / 2
    has_memory(monkeypatch, between / 0.9)
    succeed(*words, "parallel.fit=auto", "--out", fitted)
    assert pk.load_config(str(fitted / "config.yaml")).data.microbatch_size == 16
    assert losses(fitted) == pytest.approx(losses(whole), rel=1e-5)
    succeed(*words, "data.microbatch_size=8", "parallel.fit=auto", "--out", small)
    assert pk.load_config(str(small / "config.yaml")).data.microbatch_size == 8


def test_the_command_of_a_plan_that_fits_gives_the_same_run(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*words, "data.batch_size=64", "num_steps=3"]
    succeed(*words, "--out", tmp_path / "whole")
    has_memory(monkeypatch, (needed(words, 16) + needed(words, 32)) / 2 / 0.9)
    out = succeed("plan", *words[1:], "--hardware", "cpu", "--fit")
    command = shlex.split(out.partition("on the command line:\n  pretrainkit ")[2].partition("\n")[0])
    succeed(*command, "--out", tmp_path / "fitted")
    assert pk.load_config(str(tmp_path / "fitted" / "config.yaml")).data.microbatch_size == 16
    assert losses(tmp_path / "fitted") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


def test_settings_that_cannot_be_fitted_are_refused(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ("--out", tmp_path / "run")
    message = refused(*words, "parallel.fit=auto", "data.microbatch_tokens=96", *out)
    advice = followed(message, "training/run.py: parallel.fit=auto and data.microbatch_tokens")
    for remedy in (part.strip() for part in advice.partition("leave one out: ")[2].split(", or")):
        succeed(*words, "parallel.fit=auto", "data.microbatch_tokens=96", remedy, "--out", tmp_path / remedy)
    given = ("data.microbatch_tokens=96", "data.microbatch_size=4")
    message = refused(*words, *given, *out)
    advice = followed(message, "training/run.py: data.microbatch_size and data.microbatch_tokens")
    for remedy in (part.strip() for part in advice.partition("leave one out: ")[2].split(", or")):
        succeed(*words, *given, remedy, "--out", tmp_path / f"other {remedy}")
    has_memory(monkeypatch, 1000)
    message = refused(*words, "parallel.fit=auto", *out)
    advice = followed(message, "running/plan.py: not even one example fits").partition("set ")[2].partition(",")[0]
    has_memory(monkeypatch, 1e9)
    succeed(*words, "parallel.fit=auto", advice, "--out", tmp_path / "recomputed")
    monkeypatch.setattr(devices, "described", lambda device: Device("cpu", "unknown", None))
    message = refused(*words, "parallel.fit=auto", *out)
    assert not (tmp_path / "run").exists()
    advice = followed(message, "running/plan.py: parallel.fit=auto, but the memory")
    succeed(*words, *advice.partition("fit: ")[2].split(), *out)


@pytest.mark.parametrize("last", [0, 5])
def test_after_a_step_that_does_not_fit_the_advice_works(
    words: list[str], last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Trainer._update

    def fails(self: Trainer, step: int, batches: list, *rest: object) -> object:
        if step == last and len(batches) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return update(self, step, batches, *rest)

    monkeypatch.setattr(Trainer, "_update", fails)
    run, again = tmp_path / "run", tmp_path / "again"
    message = refused(*words, "--out", run, code=1)
    assert f"step {last} with 8 examples in a microbatch" in message
    advice = shlex.split(message.partition("pretrainkit ")[2].replace("FOLDER", str(again)))
    assert advice[0] == ("resume" if last == 5 else "train")
    succeed(*advice)
    assert len(losses(run if last == 5 else again)) == 6


@pytest.mark.parametrize(
    ("source", "device"),
    [("t5/1.1-xxl", "h200"), ("t5/mt5-large", "a100")],
)
def test_a_plan_names_the_largest_microbatch_that_fits(source: str, device: str) -> None:
    def planned(*words: str) -> Plan:
        return make_plan(pk.load_config(source, list(words)), device=device, dry_run=False)

    whole = planned()
    assert not whole.fits("ddp")
    if (size := whole.fitting.get("ddp")) is None:
        assert not planned("data.microbatch_size=1").fits("ddp")
        return
    found = planned(f"data.microbatch_size={size}")
    assert found.fits("ddp")
    assert found.memory["ddp"].total < 0.9 * found.device_bytes
    assert not planned(f"data.microbatch_size={2 * size}").fits("ddp")
    assert planned("parallel.fit=auto").memory == found.memory
    shown = succeed("plan", source, "--hardware", device, "--no-dry-run")
    assert f"DOES NOT FIT; data.microbatch_size={size} would" in shown
