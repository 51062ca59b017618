"""Held-out examples are shown while another device continues to train, and before the next step on a CPU."""

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from pretrainkit.data.loader import Loader
from pretrainkit.dist.env import World
from pretrainkit.errors import RunError
from pretrainkit.recipes.clip.objective import ClipObjective
from pretrainkit.recipes.clip.source import build_order
from pretrainkit.training import trainer
from pretrainkit.training.folder import RunFolder
from pretrainkit.training.run import LogConfig
from pretrainkit.training.watch import Evaluation, Sample, Watcher
from support.toy_pairs import ToyEncoder, ToyPairs, toy_config

AT = 3
"""The update after which there is an evaluation; after as many again the run ends with another one."""
Draw = Callable[[], Sequence[Sample]]


class Steps(Watcher):
    """Notes the step after the first evaluation, and raises an error there if it is given one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.went_on, self._error = threading.Event(), error

    def stepped(self, step: int, num_steps: int) -> None:
        if step == AT + 1:
            self.went_on.set()
            if self._error is not None:
                raise self._error


def train(folder: Path, watcher: Watcher, sample: Callable[[nn.Module], Draw]) -> None:
    config = toy_config(num_steps=2 * AT).model_copy(update={"log": LogConfig(every_steps=1)})
    source = ToyPairs(config)
    loader = Loader(source, build_order(config, source.sizes), batch_size=config.data.batch_size)
    torch.manual_seed(1)
    run = RunFolder(folder)
    run.prepare()
    evaluation = Evaluation(lambda model, name: {"loss": 1.0}, every_steps=AT)
    model, objective = ToyEncoder(config.objective.loss), ClipObjective(config)
    trainer.Trainer(config, run, World(), model, objective, loader, [evaluation], watcher, sample).fit()


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host runs ahead of its device."""
    monkeypatch.setattr(trainer, "reads_at_once", lambda device: False)


def shown(folder: Path) -> dict[str, list[dict[str, str]]]:
    return {path.name: json.loads(path.read_text()) for path in sorted((folder / "samples").iterdir())}


@pytest.mark.usefixtures("on_device")
def test_training_continues_while_samples_are_drawn_and_ends_with_all_of_them(tmp_path: Path) -> None:
    steps, drawn = Steps(), 0

    def sample(model: nn.Module) -> Draw:
        nonlocal drawn
        drawn += 1
        number = drawn

        def draw() -> list[dict[str, str]]:
            assert steps.went_on.wait(60)
            return [{"number": str(number)}]

        return draw

    train(tmp_path, steps, sample)
    assert shown(tmp_path) == {"step-00000003.json": [{"number": "1"}], "step-00000006.json": [{"number": "2"}]}


def test_on_a_cpu_the_next_step_waits_for_samples(tmp_path: Path) -> None:
    steps, threads = Steps(), []

    def draw() -> list[dict[str, str]]:
        threads.append((threading.current_thread(), steps.went_on.is_set()))
        return []

    train(tmp_path, steps, lambda model: draw)
    main = threading.current_thread()
    assert threads == [(main, False), (main, True)]


@pytest.mark.usefixtures("on_device")
@pytest.mark.parametrize("at", [1, 2])
def test_samples_that_cannot_be_drawn_end_the_run(tmp_path: Path, at: int) -> None:
    """The error comes with the log line after the samples, or at the end of the run."""
    numbers = iter((1, 2))

    def sample(model: nn.Module) -> Draw:
        def draw(number: int = next(numbers)) -> list[dict[str, str]]:
            if number == at:
                raise RunError("no room")
            return []

        return draw

    with pytest.raises(RunError, match="no room"):
        train(tmp_path, Steps(), sample)


@pytest.mark.usefixtures("on_device")
def test_if_training_also_fails_its_error_is_raised_and_the_other_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps = Steps(RunError("the loss is lost"))

    def draw() -> list[dict[str, str]]:
        assert steps.went_on.wait(60)
        raise RunError("no room")

    with pytest.raises(RunError, match="the loss is lost"):
        train(tmp_path, steps, lambda model: draw)
    assert "samples: no room" in caplog.text
