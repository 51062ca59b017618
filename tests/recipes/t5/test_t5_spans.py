"""Noise masks and the replacements of hidden tokens, by the facts of the released T5."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.t5.denoising import DenoiserConfig
from pretrainkit.recipes.t5.ragged import Ragged, joined, merged, ragged
from pretrainkit.recipes.t5.spans import (
    corrupt_spans,
    count_noise,
    hide,
    iid,
    limit_runs,
    plan_lengths,
    random_spans,
    regular,
    suffix,
)
from pretrainkit.rng import fold

PLANS = [
    (512, 0.15, 3, 568, 114),
    (1024, 0.15, 3, 1137, 229),
    (1024, 0.15, 20, 1193, 189),
    (512, 0.15, 2, 552, 126),
    (512, 0.15, 5, 581, 105),
    (512, 0.15, 10, 591, 99),
    (512, 0.15, 8, 588, 100),
    (512, 0.15, 32, 598, 94),
    (512, 0.10, 3, 548, 74),
    (512, 0.25, 3, 614, 206),
    (512, 0.50, 3, 766, 512),
    (512, 0.50, 8, 908, 512),
    (512, 0.50, 32, 990, 512),
    (256, 0.15, 3, 284, 58),
    (128, 0.15, 3, 141, 29),
    (64, 0.15, 3, 70, 14),
    (32, 0.15, 3, 34, 8),
    (16, 0.15, 3, 17, 5),
    (2048, 0.15, 3, 2274, 456),
    (4096, 0.15, 3, 4550, 910),
]
IDS = np.arange(32099, 31999, -1, dtype=np.int32), 32000


def keys(num, seed=0):
    return fold(seed, np.arange(num))


def full(num, length):
    return np.full(num, length, np.int64)


def rows(is_noise, lengths):
    return np.split(is_noise, np.cumsum(lengths)[:-1])


def runs(row):
    return [(kind, len(list(group))) for kind, group in groupby(row.tolist())]


@pytest.mark.parametrize(("inputs", "density", "mean", "num_tokens", "targets"), PLANS)
def test_every_row_of_the_table_of_lengths(inputs, density, mean, num_tokens, targets):
    plan = plan_lengths(inputs, density, mean)
    assert (plan.num_tokens, plan.num_targets) == (num_tokens, targets)
    assert plan.num_inputs <= inputs


def test_full_segments_fill_their_planned_lengths():
    for inputs, density, mean, num_tokens, targets in PLANS:
        num_noise, num_spans = count_noise(full(1, num_tokens), density, mean)
        assert num_tokens - num_noise[0] + num_spans[0] + 1 <= inputs
        assert num_noise[0] + num_spans[0] + 1 <= targets


def test_a_plan_needs_sensible_rates():
    with pytest.raises(ConfigError, match=r"noise_density=1\.0"):
        plan_lengths(512, 1.0, 3)
    with pytest.raises(ConfigError, match="inputs of 2 tokens"):
        plan_lengths(2, 0.15, 3)
    assert plan_lengths(3, 0.15, 3).num_tokens == 2  # a token, a sentinel and the end mark
    assert plan_lengths(6, 0.15, 3).num_tokens == 5  # four tokens of five, a sentinel and the end mark


def test_spans_of_568_tokens_are_exact_in_every_draw():
    is_noise = random_spans(keys(1000), full(1000, 568), 0.15, 3).reshape(1000, 568)
    assert (is_noise.sum(1) == 85).all()
    assert ((np.diff(is_noise.astype(int), axis=1) == 1).sum(1) == 28).all()
    assert not is_noise[:, 0].any()
    assert is_noise[:, -1].all()
    assert len(np.unique(is_noise, axis=0)) == 1000
    assert 0.04 < is_noise[:, 1].mean() < 0.09


def test_lengths_of_runs_have_the_distribution_of_the_original():
    is_noise = random_spans(keys(1000), full(1000, 568), 0.15, 3)
    lengths = [length for row in rows(is_noise, full(1000, 568)) for kind, length in runs(row) if kind]
    shares = np.bincount(lengths, minlength=4)[1:4] / len(lengths)
    np.testing.assert_allclose(shares, [0.318, 0.223, 0.151], atol=0.01)


def test_one_span_is_a_suffix_and_tiny_segments_have_little_noise():
    assert rows(random_spans(keys(3), full(3, 30), 0.15, 10), full(3, 30))[1].nonzero()[0].tolist() == [26, 27, 28, 29]
    lengths = np.array([1, 2, 0, 1])
    assert random_spans(keys(4), lengths, 0.15, 3).tolist() == [False, False, True, False]


@given(
    lengths=st.lists(st.integers(0, 90), min_size=1, max_size=6),
    density=st.floats(0.05, 0.95),
    mean=st.floats(1, 12),
    seed=st.integers(0, 2**32),
    roll=st.booleans(),
)
def test_counts_follow_from_lengths_whatever_the_draw(lengths, density, mean, seed, roll):
    lengths = np.array(lengths)
    is_noise = random_spans(keys(len(lengths), seed), lengths, density, mean, random_roll=roll)
    num_noise, num_spans = count_noise(lengths, density, mean)
    for row, length, noise, spans in zip(rows(is_noise, lengths), lengths, num_noise, num_spans, strict=True):
        if length < 2:
            assert not row.any()
            continue
        assert row.sum() == noise
        found = sum(kind for kind, _ in runs(row))
        assert found in (spans, spans + 1) if roll else found == spans


def test_a_draw_does_not_depend_on_the_rest_of_the_batch():
    lengths = np.array([40, 7, 568, 100])
    together = random_spans(keys(4), lengths, 0.15, 3)
    alone = [random_spans(keys(4)[i : i + 1], lengths[i : i + 1], 0.15, 3) for i in range(4)]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_rolled_masks_reach_every_place():
    is_noise = random_spans(keys(2000), full(2000, 40), 0.15, 3, random_roll=True).reshape(2000, 40)
    np.testing.assert_allclose(is_noise.mean(0), 0.15, atol=0.035)


def test_iid_noise_is_independent_of_the_place():
    is_noise = iid(keys(3000), full(3000, 20), 0.15).reshape(3000, 20)
    np.testing.assert_allclose(is_noise.mean(0), 0.15, atol=0.03)
    assert abs(np.corrcoef(is_noise[:, 3], is_noise[:, 4])[0, 1]) < 0.06


def test_regular_noise_has_one_length_and_one_period_in_a_segment():
    is_noise = regular(keys(400), full(400, 200), 0.15)
    seen = set()
    for row in rows(is_noise, full(400, 200)):
        inner = [length for kind, length in runs(row)[1:-1] if kind]
        gaps = [length for kind, length in runs(row)[1:-1] if not kind]
        assert len(set(inner)) == 1
        assert len(set(gaps)) == 1
        assert inner[0] + gaps[0] == round(inner[0] / 0.15)
        seen.add(inner[0])
    assert seen == {1, 2, 3, 4, 5}


def test_prefixes_are_uniform_from_one_token_to_all_but_one():
    is_noise = suffix(keys(9000), full(9000, 10), 0.5).reshape(9000, 10)
    share = np.bincount(10 - is_noise.sum(1), minlength=10)
    assert share[0] == 0
    np.testing.assert_allclose(share[1:] / 9000, 1 / 9, atol=0.015)
    assert suffix(keys(500), full(500, 41), 0.25).reshape(500, 41).sum(1).max() == 21
    with pytest.raises(ValidationError, match=r"0\.6"):
        DenoiserConfig(mask="suffix", noise_density=0.6)


def corrupted(tokens, is_noise, kind="sentinels"):
    k = keys(len(tokens))
    return hide(kind, tokens, is_noise, k, *IDS), hide(kind, tokens, ~is_noise, k, *IDS)


@given(lengths=st.lists(st.integers(0, 300), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_inputs_and_targets_give_back_the_segment(lengths, seed):
    tokens = ragged([np.arange(3, 3 + length) + 100 * row for row, length in enumerate(lengths)])
    inputs, targets = corrupted(tokens, random_spans(keys(len(lengths), seed), tokens.lengths, 0.15, 3))
    sentinels = set(IDS[0].tolist())
    for row in range(len(lengths)):
        hidden: dict[int, list[int]] = {}
        for token in targets[row].tolist():
            if token in sentinels:
                hidden[token] = []
            else:
                hidden[list(hidden)[-1]].append(token)
        restored = [t for token in inputs[row].tolist() for t in hidden.pop(token, [token])]
        if lengths[row] >= 2:
            assert [t for t in inputs[row].tolist() if t in sentinels] == list(range(32099, 32099 - 100, -1))[
                : sum(t in sentinels for t in targets[row].tolist())
            ]
        assert restored == tokens[row].tolist()


@given(
    lengths=st.lists(st.integers(2, 300), min_size=1, max_size=5),
    density=st.floats(0.05, 0.9),
    mean=st.floats(1, 9),
    seed=st.integers(0, 2**32),
)
def test_the_fast_path_equals_masks(lengths, density, mean, seed):
    pytest.importorskip("pretrainkit.recipes.t5._spans", reason="installed without a compiler")
    tokens = ragged([np.arange(3, 3 + length) + 1000 * row for row, length in enumerate(lengths)])
    sentinels = np.arange(32099, 31499, -1, dtype=np.int32)
    k = keys(len(lengths), seed)
    is_noise = random_spans(k, tokens.lengths, density, mean)
    both = corrupt_spans(k, tokens, density, mean, sentinels, 1)
    assert both is not None
    for found, is_hidden in zip(both, (is_noise, ~is_noise), strict=True):
        wanted = hide("sentinels", tokens, is_hidden, k, sentinels, 31000).with_end(1)
        np.testing.assert_array_equal(found.values, wanted.values)
        np.testing.assert_array_equal(found.lengths, wanted.lengths)


def test_the_compiled_way_reads_and_writes_nothing_outside_its_arrays():
    spans_c = pytest.importorskip("pretrainkit.recipes.t5._spans", reason="installed without a compiler")
    tokens = ragged([np.arange(3, 23)])
    cuts, sentinels = keys(1), np.arange(100, 110, dtype=np.int32)

    def run(length=20, noise=3, runs=1, num_inputs=19, num_targets=5):
        counts = [np.array([count]) for count in (length, noise, runs)]
        inputs, targets = np.zeros(num_inputs, np.int32), np.zeros(num_targets, np.int32)
        spans_c.corrupt_spans(cuts, cuts, *counts, tokens.values, sentinels, 1, inputs, targets)
        return inputs

    assert run()[-1] == 1
    broken = ({"length": 21}, {"noise": 20}, {"runs": 0}, {"noise": 12, "runs": 11}, {"num_inputs": 18}, {"length": -1})
    for wrong in (*broken, {"num_targets": 6}, {"noise": 2**62, "runs": 2}, {"runs": 4}):
        with pytest.raises(ValueError, match="do not fit"):
            run(**wrong)
    with pytest.raises(ValueError, match="clean_keys has"):
        spans_c.corrupt_spans(*[np.zeros(1, np.int32)] * 7, 1, np.zeros(1, np.int32), np.zeros(1, np.int32))


def test_a_worked_example_of_every_kind():
    tokens = ragged([[11, 12, 13, 14, 15], [21, 22]])
    is_noise = np.array([False, True, True, False, True, True, False])
    got = {kind: corrupted(tokens, is_noise, kind) for kind in ("sentinels", "shared_sentinel", "drop", "keep")}
    assert got["sentinels"][0].values.tolist() == [11, 32099, 14, 32098, 32099, 22]
    assert got["sentinels"][0].lengths.tolist() == [4, 2]
    assert got["sentinels"][1].values.tolist() == [32099, 12, 13, 32098, 15, 21, 32099]
    assert got["shared_sentinel"][0].values.tolist() == [11, 32099, 14, 32099, 32099, 22]
    assert [part.values.tolist() for part in got["drop"]] == [[11, 14, 22], [12, 13, 15, 21]]
    assert got["keep"][1] is tokens
    each, _ = corrupted(tokens, is_noise, "sentinel_per_token")
    assert each.values.tolist() == [11, 32099, 32099, 14, 32099, 32099, 22]


def test_permuted_tokens_stay_in_their_segment_and_random_ones_are_text():
    tokens = ragged([np.arange(100, 150), np.arange(200, 290)])
    everything = np.ones(140, bool)
    permuted, _ = corrupted(tokens, everything, "permute")
    assert sorted(permuted[0].tolist()) == list(range(100, 150)) != permuted[0].tolist()
    assert sorted(permuted[1].tolist()) == list(range(200, 290))
    of_segment, _ = corrupted(tokens, everything, "random_of_segment")
    assert 100 <= of_segment[0].min() <= of_segment[0].max() < 150
    of_vocabulary, _ = corrupted(tokens, everything, "random_of_vocabulary")
    assert 3 <= of_vocabulary.values.min() <= of_vocabulary.values.max() < 32000
    many = Ragged(np.full(20_000, 7, np.int32), full(2, 10_000))
    mixed, _ = corrupted(many, np.ones(20_000, bool), "random_or_sentinel")
    assert abs((mixed.values == 32099).mean() - 0.9) < 0.01


def test_runs_without_a_sentinel_are_not_hidden():
    is_noise = np.array([True, False, True, False, True, True, True, False, True])
    limited = limit_runs(is_noise, np.array([6, 3]), 2)
    assert limited.tolist() == [True, False, True, False, False, False, True, False, True]
    with pytest.raises(ValueError, match="101 runs"):
        hide("sentinels", ragged([range(3, 205)]), np.tile([True, False], 101), keys(1), *IDS)


def test_sequences_are_joined_merged_and_cut():
    first, second = ragged([[1, 2], [], [3]]), ragged([[4], [5, 6], []])
    both = joined(first, second)
    assert [both[i].tolist() for i in range(3)] == [[1, 2, 4], [5, 6], [3]]
    assert [both.head(2)[i].tolist() for i in range(3)] == [[1, 2], [5, 6], [3]]
    assert [first.with_end(9)[i].tolist() for i in range(3)] == [[1, 2, 9], [9], [3, 9]]
    parts = [(np.array([0, 3]), ragged([[7], [8, 8]])), (np.array([1, 2]), ragged([[5, 5], []]))]
    found = merged(parts, 4)
    assert [found[i].tolist() for i in range(4)] == [[7], [5, 5], [], [8, 8]]
