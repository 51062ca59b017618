"""Decisions by held-out metrics, as functions of the evaluations alone."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.training.checkpoints.best import BestSteps, EarlyStopping
from pretrainkit.training.evaluate_config import EarlyStoppingConfig
from pretrainkit.training.run import KeepBestConfig

VALUES = st.lists(st.floats(-5, 5) | st.just(math.nan) | st.none(), max_size=20)
MODES = st.sampled_from(["min", "max"])


def metrics(value):
    return {"other": 1.0} | ({} if value is None else {"score": value})


def through_json(state):
    return json.loads(json.dumps(state))


@given(VALUES, MODES, st.integers(1, 4))
def test_the_best_are_those_of_a_sort_and_equal_ones_are_the_earliest(values, mode, keep):
    best = BestSteps(KeepBestConfig(metric="score", mode=mode, keep=keep))
    for step, value in enumerate(values, 1):
        was_kept = best.record(step, metrics(value))
        assert was_kept == (step in best.steps)
    numbers = [(step, value) for step, value in enumerate(values, 1) if value is not None and not math.isnan(value)]
    sign = 1 if mode == "min" else -1
    wanted = sorted(numbers, key=lambda pair: (sign * pair[1], pair[0]))[:keep]
    assert best.steps == tuple(step for step, _ in wanted)


@given(VALUES, MODES, st.integers(1, 4), st.integers(0, 20))
def test_a_resumed_run_decides_as_if_it_never_stopped(values, mode, patience, cut):
    def fresh():
        stopping = EarlyStopping(EarlyStoppingConfig(metric="score", mode=mode, patience=patience, atol=0.1, rtol=0.1))
        return stopping, BestSteps(KeepBestConfig(metric="score", mode=mode, keep=2))

    whole, resumed = fresh(), fresh()
    for step, value in enumerate(values, 1):
        if step == cut:
            states = [through_json(one.state()) for one in resumed]
            resumed = fresh()
            for one, state in zip(resumed, states):
                one.load_state(state)
        for one in (*whole, *resumed):
            one.record(step, metrics(value))
    assert whole[0].is_over == resumed[0].is_over
    assert whole[1].steps == resumed[1].steps


@pytest.mark.parametrize(
    ("values", "settings", "over_after"),
    [
        ([5, 4, 3, 2, 1], {}, None),
        ([5, 4, 4, 4, 1], {"patience": 2}, 4),
        ([5, 6, 4, 7, 8], {"patience": 2}, 5),
        ([5, 4.95, 4.9, 1], {"patience": 2, "atol": 0.2}, 3),
        ([5, 4.9, 4.8, 4.4], {"patience": 3, "atol": 0.2}, None),  # against the best, not the last: 5 to 4.4
        ([100, 99, 98, 1], {"patience": 2, "rtol": 0.05}, 3),
        ([1, 2, 3, 2, 2], {"mode": "max", "patience": 2}, 5),
        ([math.nan, math.nan], {"patience": 2}, 2),
    ],
)
def test_patience_counts_evaluations_without_a_better_value(values, settings, over_after):
    stopping = EarlyStopping(EarlyStoppingConfig(metric="score", **settings))
    over = []
    for step, value in enumerate(values, 1):
        stopping.record(step, metrics(value))
        over += [step] if stopping.is_over else []
    assert (over[0] if over else None) == over_after


def test_evaluations_without_the_metric_do_not_count():
    stopping = EarlyStopping(EarlyStoppingConfig(metric="score", patience=1))
    for step in range(5):
        stopping.record(step, {"other": 3.0})
    assert not stopping.is_over


def test_the_state_of_another_metric_is_ignored():
    stopping = EarlyStopping(EarlyStoppingConfig(metric="score", patience=1))
    stopping.record(1, metrics(1.0))
    stopping.record(2, metrics(2.0))
    other = EarlyStopping(EarlyStoppingConfig(metric="loss", patience=1))
    other.load_state(through_json(stopping.state()))
    assert stopping.is_over
    assert not other.is_over


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([math.nan, math.nan], "score was not a number in 2 evaluations"),
        ([1.0, 2.0, 3.0], "score has not improved for 2 evaluations (best: 1 at step 1)"),
    ],
)
def test_the_reason_for_an_early_end_is_described(values, reason):
    stopping = EarlyStopping(EarlyStoppingConfig(metric="score", mode="min", patience=2))
    for step, value in enumerate(values, 1):
        stopping.record(step, metrics(value))
    assert stopping.is_over
    assert stopping.describe() == reason
