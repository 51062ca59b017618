"""Choice of the hidden patches: facts of the original, and one law for all settings."""

import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.recipes.pixel.config import PixelObjectiveConfig
from pretrainkit.recipes.pixel.masking import (
    SpanRule,
    draw_masks,
    draw_spans,
    draw_spans_by_python,
    num_masked,
    original_mask,
)
from pretrainkit.rng import fold

PUBLISHED = PixelObjectiveConfig(mask_region="canvas")


def keys(seed: int, num: int) -> np.ndarray:
    return fold(seed, np.arange(num))


def runs(is_masked: np.ndarray) -> list[int]:
    """Lengths of the hidden runs of a row."""
    padded = np.concatenate(([0], is_masked.astype(int), [0]))
    return (np.flatnonzero(np.diff(padded) == -1) - np.flatnonzero(np.diff(padded) == 1)).tolist()


def test_targets_are_rounded_up() -> None:
    assert num_masked(np.array([529, 256, 10, 2]), 0.25).tolist() == [133, 64, 3, 1]
    assert num_masked(np.array([10, 30]), 0.1).tolist() == [1, 3]


def test_published_setting_gives_the_measured_masks() -> None:
    masks = draw_masks(PUBLISHED, keys(1, 3000), np.full(3000, 528), 529)
    assert set(masks.sum(1)) == {133}
    lengths = np.concatenate([runs(mask) for mask in masks])
    assert abs(lengths.mean() - 2.8) < 0.05
    shares = [np.mean(lengths == length) for length in range(1, 7)]
    np.testing.assert_allclose(shares, [0.26, 0.22, 0.19, 0.18, 0.08, 0.07], atol=0.015)
    assert abs(masks[:, 0].mean() - 0.12) < 0.03
    assert ((masks[:, 6:520].mean(0) > 0.2) & (masks[:, 6:520].mean(0) < 0.32)).all()


def test_first_span_is_in_the_text() -> None:
    lengths = np.full(500, 7)
    masks = draw_masks(PUBLISHED, keys(2, 500), lengths, 529)
    assert masks[:, :8].any(1).all()


def test_first_span_may_be_anywhere_in_the_text_and_its_end_patch() -> None:
    config = PixelObjectiveConfig(
        mask_ratio=0.001, mask_region="canvas", max_span_length=1, cumulative_span_weights=(1,)
    )
    masks = draw_masks(config, keys(7, 500), np.full(500, 7), 529)
    assert set(np.flatnonzero(masks.any(0))) == set(range(8))
    assert (masks.sum(1) == 1).all()


@given(
    lengths=st.lists(st.integers(1, 39), min_size=1, max_size=6),
    ratio=st.floats(0.02, 0.95),
    masking=st.sampled_from(["span", "random"]),
    region=st.sampled_from(["text", "canvas"]),
    spacing=st.sampled_from(["span", 0, 1, 3]),
    seed=st.integers(0, 2**31),
)
def test_every_row_has_exactly_its_share(
    lengths: list[int], ratio: float, masking: str, region: str, spacing: int | str, seed: int
) -> None:
    config = PixelObjectiveConfig(mask_ratio=ratio, masking=masking, mask_region=region, spacing=spacing)
    masks = draw_masks(config, keys(seed, len(lengths)), np.array(lengths), 40)
    for mask, length in zip(masks, lengths, strict=True):
        size = length + 1 if region == "text" else 40
        assert mask.sum() == num_masked(np.array([size]), ratio)[0]
        assert not mask[size:].any()


def test_random_masks_hide_a_patch_of_every_text() -> None:
    config = PixelObjectiveConfig(masking="random", mask_ratio=0.02, mask_region="canvas")
    masks = draw_masks(config, keys(3, 200), np.full(200, 1), 40)
    assert masks[:, :2].any(1).all()


@given(seed=st.integers(0, 2**31), cut=st.integers(0, 4))
def test_a_mask_does_not_depend_on_its_batch(seed: int, cut: int) -> None:
    lengths = np.array([30, 5, 17, 39, 22])
    whole = draw_masks(PixelObjectiveConfig(), keys(seed, 5), lengths, 40)
    part = draw_masks(PixelObjectiveConfig(), keys(seed, 5)[cut:], lengths[cut:], 40)
    assert (whole[cut:] == part).all()


@pytest.mark.parametrize("spacing", [None, 0, 1, 5])
@pytest.mark.parametrize("weights", [(0.2, 0.4, 0.6, 0.8, 0.9, 1.0), (1.0,), (0.0, 0.5, 1.0)])
def test_compiled_and_plain_spans_are_equal(spacing: int | None, weights: tuple[float, ...]) -> None:
    pytest.importorskip("pretrainkit.recipes.pixel._masks", reason="built without a compiler")
    lengths = np.array([1, 2, 3, 10, 33, 64])
    for sizes in (lengths, np.full(6, 64)):
        asked = (SpanRule(weights, spacing), keys(4, 6), lengths, sizes, num_masked(sizes, 0.4), 64)
        assert (draw_spans(*asked) == draw_spans_by_python(*asked)).all()


def test_compiled_spans_refuse_arrays_that_do_not_fit() -> None:
    compiled = pytest.importorskip("pretrainkit.recipes.pixel._masks", reason="built without a compiler")
    one = np.array([8])
    with pytest.raises(ValueError, match="do not match"):
        compiled.draw_spans(keys(0, 1), one + 1, one, one, np.array([1.0]), 0, np.zeros((1, 8), np.bool_))


def test_many_spans_have_the_distribution_of_the_original() -> None:
    rule = {"num_patches": 529, "num_masking_patches": 133, "num_text_patches": 529, "max_span_length": 6}
    weights = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
    rng = random.Random(0)
    theirs = np.array([original_mask(rng, **rule, spacing=None, cumulative_span_weights=weights) for _ in range(300)])
    ours = draw_masks(PUBLISHED, keys(5, 3000), np.full(3000, 528), 529)
    assert set(theirs.sum(1)) == {133}
    by_length = [
        np.bincount(np.concatenate([runs(mask) for mask in masks]), minlength=13)[:13] / len(masks)
        for masks in (theirs, ours)
    ]
    np.testing.assert_allclose(by_length[0], by_length[1], atol=0.5)
    assert abs(theirs[:, :3].mean() - ours[:, :3].mean()) < 0.03


def original_by_hand(seed: int) -> np.ndarray:
    """The original's rule, step by step."""
    random.seed(seed)
    mask, count, is_first = [0] * 40, 0, True
    while count < 10:
        budget, added = min(10 - count, 3), 0
        for _ in range(100):
            if added:
                break
            (span,) = random.choices([1, 2, 3], cum_weights=[0.5, 0.8, 1.0])
            if span >= 40:
                continue
            left = random.randint(0, max(0, 20 - span)) if is_first else random.randint(0, 40 - span)
            is_first = False
            if any(mask[max(0, left - span) : left]) or any(mask[left + span : left + 2 * span]):
                continue
            new = span - sum(mask[left : left + span])
            if 0 < new <= budget:
                mask[left : left + span] = [1] * span
                added = new
        if not added:
            break
        count += added
    return np.array(mask, bool)


@pytest.mark.parametrize("seed", range(5))
def test_parity_draws_follow_pythons_random_numbers(seed: int) -> None:
    ours = original_mask(
        random.Random(seed),
        num_patches=40,
        num_masking_patches=10,
        num_text_patches=20,
        max_span_length=3,
        spacing=None,
        cumulative_span_weights=(0.5, 0.8, 1.0),
    )
    assert (ours == original_by_hand(seed)).all()


def test_no_run_hides_a_whole_row() -> None:
    """No run of 4 patches is taken in a row of 4, and one in a row of 5."""
    shares = (0.0, 0.0, 0.0, 1.0)
    for size, hidden in ((4, 0), (5, 4)):
        sizes = {"num_patches": size, "num_masking_patches": 4, "num_text_patches": size, "max_span_length": 4}
        mask = original_mask(random.Random(0), **sizes, spacing=0, cumulative_span_weights=shares)
        assert mask.sum() == hidden
        of_row = np.full(3, size)
        for draw in (draw_spans, draw_spans_by_python):
            masks = draw(SpanRule(shares, 0), keys(8, 3), of_row, of_row, np.full(3, 4), size)
            assert masks.sum(1).tolist() == [hidden] * 3


def test_a_batch_of_256_takes_milliseconds() -> None:
    pytest.importorskip("pretrainkit.recipes.pixel._masks", reason="built without a compiler")
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        draw_masks(PUBLISHED, keys(6, 256), np.full(256, 528), 529)
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 0.005
