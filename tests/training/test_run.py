"""Settings of a run that cannot hold together are all named, before any compute."""

import pytest

from pretrainkit.config.base import Config
from pretrainkit.training.data_config import DataConfig
from pretrainkit.training.optimizers.config import AdafactorConfig, OptimizerConfig, ScheduleConfig
from pretrainkit.training.run import InitConfig, RunConfig


def run(num_steps: int | None = 100, **schedule) -> RunConfig:
    return RunConfig(
        recipe="toy",
        num_steps=num_steps,
        model=Config(),
        objective=Config(),
        data=DataConfig(batch_size=8),
        optimizer=OptimizerConfig(peak_lr=1e-3),
        schedule=ScheduleConfig(**schedule),
    )


@pytest.mark.parametrize(
    "schedule",
    [
        {"name": "wsd", "num_warmup_steps": 40, "num_decay_steps": 60},
        {"name": "linear", "num_warmup_steps": 100, "floor": 0.1},
        {"name": "constant"},
    ],
)
def test_schedules_that_fit_have_no_problem(schedule) -> None:
    assert run(**schedule).problems() == []


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"name": "wsd", "num_warmup_steps": 41, "num_decay_steps": 60}, ["is 101", "num_steps = 100"]),
        ({"name": "wsd"}, ["needs schedule.num_decay_steps"]),
        ({"name": "cosine", "num_decay_steps": 5}, ["num_decay_steps=5", "not with cosine"]),
        ({"name": "linear", "num_warmup_steps": 101}, ["num_warmup_steps 101", "num_steps 100"]),
        ({"name": "inverse_sqrt", "floor": 0.1}, ["floor=0.1", "not with inverse_sqrt"]),
        ({"name": "constant", "floor": 0.5}, ["floor=0.5", "not with constant"]),
    ],
)
def test_each_misfit_is_one_problem_with_its_values(schedule, words) -> None:
    problems = run(**schedule).problems()
    assert len(problems) == 1
    assert all(word in problems[0] for word in words)


def test_problems_come_together() -> None:
    config = run(num_steps=10, name="constant", num_warmup_steps=11, floor=0.5)
    assert len(config.problems(world_size=3)) == 3


def test_a_run_must_set_its_length() -> None:
    assert any("neither num_steps nor data.num_epochs" in problem for problem in run(num_steps=None).problems())


def test_two_lengths_of_the_warm_up_are_refused() -> None:
    found = run(num_warmup_steps=10, warmup_share=0.1).problems()
    assert any("num_warmup_steps=10" in problem and "warmup_share=0.1" in problem for problem in found)


def test_a_new_state_of_adafactor_has_no_earlier_updates() -> None:
    optimizer = OptimizerConfig(name="adafactor", peak_lr=1e-3, adafactor=AdafactorConfig(step_offset=50))
    config = run().changed(optimizer=optimizer, init_from="earlier")
    assert [problem for problem in config.problems() if "optimizer.adafactor.step_offset=50" in problem]
    assert not config.changed(init=InitConfig(restore="all")).problems()
