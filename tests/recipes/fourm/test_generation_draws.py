"""Draws of a token from logits: filters and frequencies against brute force."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.recipes.fourm.generation.sampler import draw, filtered, middle


def by_hand(logits: np.ndarray, top_k: float, top_p: float) -> set[int]:
    """Return the ids that may be drawn."""
    order = sorted(range(len(logits)), key=lambda one: (-logits[one], one))
    if top_k:
        order = order[: max(1, int(top_k) if top_k >= 1 else int(top_k * len(logits)))]
    if 0 < top_p < 1:
        share = np.exp(logits[order] - logits.max())
        share, kept, total = share / share.sum(), [], 0.0
        for one, own in zip(order, share, strict=True):
            kept.append(one)
            total += own
            if total > top_p:
                break
        order = kept
    return set(order)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    num=st.integers(1, 30),
    top_k=st.sampled_from([0, 1, 5, 100, 0.25, 0.01]),
    top_p=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
)
def test_filters_equal_brute_force(seed: int, num: int, top_k: float, top_p: float) -> None:
    logits = np.random.default_rng(seed).normal(size=num) * 2
    kept = filtered(torch.from_numpy(logits)[None], top_k=top_k, top_p=top_p)[0].isfinite().nonzero()[:, 0]
    assert set(kept.tolist()) == by_hand(logits, top_k, top_p)


@pytest.mark.parametrize(("num_tokens", "share", "num_kept"), [(8192, 0.9, 7372), (133, 0.9, 119), (30, 0.01, 1)])
def test_a_share_is_rounded_down_as_in_the_original(num_tokens: int, share: float, num_kept: int) -> None:
    assert int(filtered(torch.zeros(1, num_tokens), top_k=share).isfinite().sum()) == num_kept


def test_a_whole_number_keeps_that_number_of_tokens() -> None:
    logits = torch.zeros(1, 40, dtype=torch.float64)  # all alike: the first ones
    assert filtered(logits, top_k=5).isfinite().nonzero()[:, 1].tolist() == [0, 1, 2, 3, 4]


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31), heat=st.floats(0.2, 4), top_k=st.sampled_from([0, 3]))
def test_draws_have_the_probabilities_of_the_softmax(seed: int, heat: float, top_k: int) -> None:
    logits = np.random.default_rng(seed).normal(size=7)
    num = 2000  # evenly spread numbers instead of random ones: shares are exact to one in `num`
    uniform = torch.from_numpy((np.arange(num) + 0.5) / num)
    ids, sure = draw(
        torch.from_numpy(logits).expand(num, -1), uniform, torch.full((num,), heat, dtype=torch.float64), top_k=top_k
    )
    allowed = by_hand(logits, top_k, 0)
    share = np.array([np.exp(value / heat) if one in allowed else 0.0 for one, value in enumerate(logits)])
    share /= share.sum()
    np.testing.assert_allclose(np.bincount(ids.numpy(), minlength=7) / num, share, atol=1.01 / num)
    np.testing.assert_allclose(sure.numpy(), share[ids.numpy()], rtol=1e-9)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**31), heat=st.floats(0.2, 4), numbers=st.sampled_from([1, 3]), top_k=st.sampled_from([0, 9])
)
def test_the_mean_or_median_of_several_numbers_is_that_of_each_alone(
    seed: int, heat: float, numbers: int, top_k: int
) -> None:
    steps = {1: 23, 3: 4}[numbers]
    logits = np.random.default_rng(seed).normal(size=steps**numbers)
    share = np.array([np.exp(v / heat) if one in by_hand(logits, top_k, 0) else 0.0 for one, v in enumerate(logits)])
    share = (share / share.sum()).reshape((steps,) * numbers)
    given_logits, heats = torch.from_numpy(logits)[None], torch.full((1,), heat, dtype=torch.float64)
    for which in ("mean", "median"):
        ids, sure = middle(given_logits, heats, which, numbers, top_k=top_k)
        found = np.unravel_index(int(ids), share.shape)
        for axis, place in enumerate(found):
            own = share.sum(axis=tuple(other for other in range(numbers) if other != axis))
            if which == "mean":
                assert abs(place - own @ np.arange(steps)) <= 0.5 + 1e-9
            else:
                assert own[: place + 1].sum() >= 0.5 - 1e-9
                assert own[place:].sum() >= 0.5 - 1e-9
        np.testing.assert_allclose(float(sure), share[found], rtol=1e-9)


def test_without_temperature_the_confidence_of_the_top_token_is_its_probability() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0], [2.0, 1.9, 0.0]], dtype=torch.float64)
    ids, sure = draw(logits, torch.tensor([0.0, 0.999], dtype=torch.float64), torch.full((2,), 1e-9).double())
    assert ids.tolist() == [2, 0]
    torch.testing.assert_close(sure, logits.softmax(-1).max(-1).values)
