"""Tokens and temperatures of steps: published numbers, and laws for all schedules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.fourm.generation.plan import cosine, linear, temperatures, token_counts


def test_schedules_have_the_published_numbers() -> None:
    assert cosine(8, 196) == [7, 21, 32, 38, 38, 32, 21, 7]
    assert cosine(8, 784) == [30, 85, 127, 150, 150, 127, 85, 30]
    assert linear(25, 196) == [8] * 21 + [7] * 4
    assert linear(250, 196) == [1] * 196


@given(num_steps=st.integers(1, 300), num_tokens=st.integers(1, 800), name=st.sampled_from(["cosine", "linear", "one"]))
def test_every_schedule_makes_all_tokens(num_steps: int, num_tokens: int, name: str) -> None:
    counts = token_counts(name, num_steps, num_tokens)
    assert sum(counts) == num_tokens
    assert min(counts) >= 0
    assert len(counts) == (
        num_tokens if name == "one" else min(num_steps, num_tokens) if name == "linear" else num_steps
    )


def test_own_token_counts_continue_after_the_known_tokens() -> None:
    assert token_counts((4, 3, 2), 8, 9) == [4, 3, 2]
    assert token_counts((4, 3, 2), 8, 4) == [2, 2]
    assert token_counts((4, 3, 2), 8, 0) == []
    with pytest.raises(ConfigError, match="has 9 tokens, but 10"):
        token_counts((4, 3, 2), 8, 10)


def test_temperatures_have_the_published_numbers() -> None:
    counts = cosine(8, 196)
    np.testing.assert_allclose(
        temperatures("linear", 5.0, counts), [5.0, 4.821, 4.286, 3.469, 2.5, 1.531, 0.714, 0.179], atol=5e-4
    )
    np.testing.assert_allclose(
        temperatures("onex:0.5:0.5", 6.0, counts), [5.804, 4.242, 3.063, 2.118, 1.388, 0.877, 0.587, 0.5], atol=5e-4
    )
    assert temperatures("constant", 2.0, counts) == [2.0] * 8


@given(
    num_steps=st.integers(1, 20),
    num_tokens=st.integers(1, 20),
    name=st.sampled_from(["cosine", "linear", "one"]),
    schedule=st.sampled_from(["constant", "linear", "onex:0.5:0.5"]),
)
def test_every_step_has_a_temperature_also_if_there_are_more_steps_than_tokens(
    num_steps: int, num_tokens: int, name: str, schedule: str
) -> None:
    counts = token_counts(name, num_steps, num_tokens)
    degrees = temperatures(schedule, 6.0, counts)
    assert len(degrees) == len(counts)
    assert all(0 < degree <= 6 for degree in degrees)
    assert degrees == sorted(degrees, reverse=True)


@pytest.mark.parametrize("schedule", ["cosine", "onex:1", "onex:-1:0.5", "onex:0.5:0", "onex:e:e"])
def test_an_unknown_temperature_schedule_is_refused(schedule: str) -> None:
    with pytest.raises(ConfigError, match="there is no temperature_schedule"):
        temperatures(schedule, 1.0, [1, 2])
