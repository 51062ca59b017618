"""Fact 22: shares and coins depend on the seed, beta and the step alone, in the order of the original's stream."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.recipes.clip.config import MixupConfig
from pretrainkit.recipes.clip.source import mixup_of_step


@pytest.mark.parametrize("config", [MixupConfig(), MixupConfig(beta=0.8, seed=5)])
def test_fact_22_each_step_draws_the_share_then_the_coin_from_one_stream(config):
    stream = np.random.RandomState(config.seed)
    for step in range(1500):
        share, coin = stream.beta(config.beta, config.beta), stream.uniform(0, 1)
        assert mixup_of_step(config, step).tolist() == [np.float32(share), float(coin > 0.5)]


@given(step=st.integers(0, 4000))
def test_a_late_step_does_not_need_the_ones_before(step):
    config = MixupConfig(seed=9)
    first = mixup_of_step(config, step).tolist()
    mixup_of_step(config, 0)
    assert mixup_of_step(config, step).tolist() == first


def test_shares_are_mostly_near_the_ends_and_coins_are_fair():
    drawn = np.stack([mixup_of_step(MixupConfig(), step) for step in range(4000)])
    assert ((drawn[:, 0] < 0.1) | (drawn[:, 0] > 0.9)).mean() > 0.7
    assert abs(drawn[:, 1].mean() - 0.5) < 3 * 0.5 / 4000**0.5


def test_a_negative_step_is_refused():
    with pytest.raises(ValueError, match="no step -1"):
        mixup_of_step(MixupConfig(), -1)
