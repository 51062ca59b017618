"""The learning rate: numbers of the originals, and laws of every schedule."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.config.base import Config
from pretrainkit.training.data_config import DataConfig
from pretrainkit.training.optimizers.config import OptimizerConfig, ScheduleConfig
from pretrainkit.training.optimizers.schedule import learning_rate, lr_factor
from pretrainkit.training.run import RunConfig

NAMES = ["linear", "cosine", "inverse_sqrt", "wsd", "constant"]


def test_fact_33_linear_learning_rates() -> None:
    config = ScheduleConfig(num_warmup_steps=10_000)
    expected = {0: 0.0, 5_000: 5e-5, 10_000: 1e-4, 505_000: 5e-5, 999_999: 1.0101e-10}
    for step, lr in expected.items():
        assert 1e-4 * lr_factor(config, 1_000_000, step) == pytest.approx(lr, rel=1e-4, abs=0)
    recipe_b = ScheduleConfig(num_warmup_steps=3_125)
    assert 1e-3 * lr_factor(recipe_b, 31_250, 3_124) == pytest.approx(9.997e-4, rel=1e-4)
    assert 1e-3 * lr_factor(recipe_b, 31_250, 3_125) == 1e-3


def test_the_first_update_has_the_rate_of_step_0() -> None:
    config = ScheduleConfig(num_warmup_steps=10)
    assert [learning_rate(config, 2.0, 100, step) for step in (0, 1)] == [2 * lr_factor(config, 100, 0), 0.2]


@pytest.mark.parametrize("name", NAMES)
def test_without_warmup_the_first_update_has_the_peak(name: str) -> None:
    config = ScheduleConfig(name=name, num_decay_steps=10 if name == "wsd" else 0)
    assert lr_factor(config, 100, 0) == 1.0


@given(
    name=st.sampled_from(NAMES),
    num_steps=st.integers(1, 2000),
    warmup_share=st.floats(0, 1),
    decay_share=st.floats(0, 1),
    floor=st.floats(0, 1),
)
def test_schedules_rise_linearly_then_never_rise_and_keep_the_floor(name, num_steps, warmup_share, decay_share, floor):
    warmup = round(num_steps * warmup_share)
    decay = max(1, round((num_steps - warmup) * decay_share)) if name == "wsd" else 0
    config = ScheduleConfig(name=name, num_warmup_steps=warmup, floor=floor, num_decay_steps=decay)
    factors = [lr_factor(config, num_steps, step) for step in range(num_steps + 3)]

    assert all(0 <= factor <= 1 for factor in factors)
    assert factors[:warmup] == [step / warmup for step in range(warmup)]
    after = factors[warmup:]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(after))
    if warmup < num_steps:
        assert after[0] == pytest.approx(1.0)
    if name in ("linear", "cosine", "wsd"):
        assert min(after) >= floor - 1e-12
        assert factors[-3:] == pytest.approx([floor] * 3)


@given(
    name=st.sampled_from(NAMES), num_steps=st.integers(1000, 5000), warmup=st.integers(100, 400), floor=st.floats(0, 1)
)
def test_schedules_are_continuous(name, num_steps, warmup, floor):
    decay = 500 if name == "wsd" else 0
    config = ScheduleConfig(name=name, num_warmup_steps=warmup, floor=floor, num_decay_steps=decay)
    factors = [lr_factor(config, num_steps, step) for step in range(num_steps + 1)]
    # 1 - sqrt falls fastest at once: by sqrt(1 / 500) in its first step.
    assert max(abs(b - a) for a, b in itertools.pairwise(factors)) <= max(1 / warmup, math.sqrt(1 / 500)) + 1e-9


def test_shapes_at_known_points() -> None:
    assert lr_factor(ScheduleConfig(name="cosine", floor=0.1), 100, 50) == pytest.approx(0.55)
    assert lr_factor(ScheduleConfig(name="inverse_sqrt", num_warmup_steps=100), 10_000, 400) == pytest.approx(0.5)
    wsd = ScheduleConfig(name="wsd", num_warmup_steps=10, num_decay_steps=100)
    assert [lr_factor(wsd, 1000, step) for step in (10, 899, 900)] == [1.0, 1.0, 1.0]
    assert lr_factor(wsd, 1000, 925) == pytest.approx(0.5)
    assert lr_factor(wsd, 1000, 1000) == 0.0
    assert lr_factor(ScheduleConfig(name="constant", num_warmup_steps=4), 100, 99) == 1.0


@pytest.mark.parametrize(("share", "num_steps", "expected"), [(0.025, 10_000, 250), (0.29, 100, 29), (0.0, 7, 0)])
def test_a_share_of_the_steps_as_warm_up(share: float, num_steps: int, expected: int) -> None:
    by_share = ScheduleConfig(name="cosine", warmup_share=share, floor=0.1)
    by_number = ScheduleConfig(name="cosine", num_warmup_steps=expected, floor=0.1)
    assert by_share.warmup_steps(num_steps) == expected
    for step in range(0, num_steps, max(1, num_steps // 50)):
        assert lr_factor(by_share, num_steps, step) == lr_factor(by_number, num_steps, step)


def test_the_figures_of_zerovl() -> None:
    """Warm-up 0.025 of 10,000 updates, cosine to a tenth."""
    config = ScheduleConfig(name="cosine", warmup_share=0.025, floor=0.1)
    assert lr_factor(config, 10_000, 0) == 0
    assert lr_factor(config, 10_000, 125) == 0.5
    assert lr_factor(config, 10_000, 250) == 1
    assert lr_factor(config, 10_000, 5_125) == pytest.approx(0.55)


def t5x(factors, base=0.5, warmup=1000, **changes):
    """T5X's scheduler with its defaults."""
    config = ScheduleConfig(name="factors", factors=factors, num_warmup_steps=warmup, **changes)
    return lambda step: learning_rate(config, base, num_steps=1, step=step)


def test_t5x_pretraining_holds_the_rate_and_then_lets_it_fall():
    rate = t5x("constant * rsqrt_decay", base=1.0, warmup=10_000)
    expected = {0: 0.01, 1: 0.01, 9_999: 0.01, 10_000: 0.01, 20_000: 0.0070711, 100_000: 0.0031623, 1_000_000: 0.001}
    assert {step: pytest.approx(rate(step), rel=1e-5) for step in expected} == expected
    fine_tuning = t5x("constant", base=0.001)
    assert {fine_tuning(step) for step in (0, 1, 1000, 10**6)} == {0.001}


def test_t5x_default_schedule():
    rate = t5x("constant * linear_warmup * rsqrt_decay")
    assert rate(0) == 1e-8
    assert rate(1000) == pytest.approx(0.015811, rel=1e-4)
    assert rate(10_000) == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("factors", "values"),
    [
        ("constant * rsqrt_normalized_decay", {0: 0.5, 1000: 0.5, 4000: 0.25}),
        ("constant * decay_every", {0: 0.5, 19_999: 0.5, 20_000: 0.25, 60_000: 0.0625}),
        ("constant * cosine_decay", {0: 0.5, 1000: 0.5, 51_000: 0.25, 100_999: 1e-8, 101_000: 0.5}),
        ("linear_decay", {0: 1e-8, 500: 0.25, 1000: 0.5, 1001: 0.25, 1002: 1e-8}),
        ("rsqrt_decay", {1000: 1000**-0.5}),
    ],
)
def test_t5x_factors(factors, values):
    rate = t5x(factors)
    assert {step: pytest.approx(rate(step), rel=1e-3, abs=2e-9) for step in values} == values


def test_t5x_factors_without_warm_up():
    """T5X's own rsqrt_decay has no value at step 0 then; ours begins as at step 1."""
    for factors in ("linear_warmup * rsqrt_decay", "linear_warmup * rsqrt_normalized_decay"):
        assert [t5x(factors, warmup=0)(step) for step in (0, 1, 4)] == [1.0, 1.0, 0.5]


def test_t5x_steps_can_be_counted_from_a_later_one():
    rate, later = t5x("constant * linear_warmup"), t5x("constant * linear_warmup", step_offset=5000, min_lr=0.001)
    assert later(0) == later(5000) == 0.001
    assert later(5700) == rate(700) == pytest.approx(0.35)


@pytest.mark.parametrize("name", ["linear", "cosine", "inverse_sqrt", "wsd", "constant"])
def test_a_restarted_schedule_is_that_of_a_run_without_the_steps_before(name):
    settings = {"name": name, "num_warmup_steps": 10, "num_decay_steps": 20 if name == "wsd" else 0}
    restarted, plain = ScheduleConfig(**settings, step_offset=1000), ScheduleConfig(**settings)
    for step in (0, 5, 10, 50, 99):
        assert learning_rate(restarted, 0.5, 1100, 1000 + step) == learning_rate(plain, 0.5, 100, step)
    assert learning_rate(restarted, 0.5, 1100, 3) == learning_rate(plain, 0.5, 100, 0)


def test_settings_of_the_factors_are_refused_elsewhere():
    run = RunConfig(
        recipe="any",
        num_steps=10,
        model=Config(),
        objective=Config(),
        data=DataConfig(batch_size=1),
        optimizer=OptimizerConfig(peak_lr=1.0),
        schedule=ScheduleConfig(min_lr=0.1),
    )
    assert any(
        "schedule.min_lr=0.1 has an effect only with schedule.name=factors" in problem for problem in run.problems()
    )
    without = run.model_copy(update={"schedule": ScheduleConfig(name="factors")})
    assert any("needs schedule.factors" in problem for problem in without.problems())
