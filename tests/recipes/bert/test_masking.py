"""Choice of the predicted tokens, and how they are hidden: facts of Sabertooth, and laws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pretrainkit.data.subsets import slots, subsets
from pretrainkit.recipes.bert.batch import Examples, assemble, packed, rows
from pretrainkit.recipes.bert.config import BertObjectiveConfig
from pretrainkit.recipes.bert.masking import Masking, choose, num_predictions
from pretrainkit.recipes.bert.segments import Segments
from pretrainkit.rng import fold, stream_key
from pretrainkit.tokenizers.special import SpecialIds

SPECIAL = SpecialIds(unk=256, cls=257, sep=258, mask=259, pad=260)
VOCAB_SIZE = 1000
LEARNED = np.arange(261, VOCAB_SIZE)
IS_WORD_START = np.arange(VOCAB_SIZE) % 3 > 0


def masking(**options) -> Masking:
    """The settings of the published recipe, with changes."""
    given_options = {
        "rate": 0.15,
        "max_predictions": 20,
        "mask_id": SPECIAL.mask,
        "replacement_ids": LEARNED,
        "is_word_start": IS_WORD_START,
    } | options
    shares = {name: given_options.pop(name, usual) for name, usual in (("mask_share", 0.8), ("random_share", 0.1))}
    shares["keep_share"] = max(0.0, 1 - sum(shares.values()))
    chosen = {"mask_unit": given_options.pop("unit", "token")}
    chosen["mean_span_length"] = given_options.pop("mean_span_length", 3.0)
    return Masking(BertObjectiveConfig(**shares, **chosen), **given_options)


def keys_of(num: int, seed: int = 0):
    return fold(stream_key(seed, "masking test"), np.arange(num))


def segments_of(pairs: list[tuple[int, int]], is_swapped=None) -> tuple[Segments, np.ndarray]:
    """Examples of these segment lengths, and a text in which token i is 261 + i modulo the learned pieces."""
    lengths = np.array(pairs, np.int64).reshape(-1, 2)
    starts = np.concatenate([[0], np.cumsum(lengths.ravel())])[:-1].reshape(-1, 2)
    text = 261 + np.arange(lengths.sum()) % (VOCAB_SIZE - 261)
    swapped = np.zeros(len(lengths), np.bool_) if is_swapped is None else np.asarray(is_swapped)
    return Segments(starts, lengths, swapped), text


def examples_of(pairs, seed: int = 0, **options) -> tuple[Examples, np.ndarray]:
    segments, text = segments_of(pairs)
    return assemble(segments, text, keys_of(len(segments.lengths_B2), seed), masking(**options), SPECIAL), text


def restored(batch: dict[str, np.ndarray]) -> np.ndarray:
    """input_ids of a rows batch with every hidden token put back."""
    ids = batch["input_ids"].copy()
    row, slot = np.nonzero(batch["masked_lm_weights"])
    ids[row, batch["masked_lm_positions"][row, slot]] = batch["masked_lm_ids"][row, slot]
    return ids


PAIRS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=8)
UNITS = st.sampled_from(["token", "whole_word", "span"])


@given(num=st.lists(st.integers(0, 12), min_size=1, max_size=20), spare=st.integers(0, 30), seed=st.integers(0, 2**32))
def test_subsets_are_distinct_ascending_and_of_exact_size(num, spare, seed):
    num = np.array(num)
    size = num + spare
    chosen = subsets(keys_of(len(num), seed), num, size)
    assert len(chosen) == num.sum()
    row = np.repeat(np.arange(len(num)), num)
    assert (chosen >= 0).all()
    assert (chosen < size[row]).all()
    assert (np.diff(chosen)[np.diff(row) == 0] > 0).all()


def test_all_subsets_are_equally_likely():
    chosen = subsets(keys_of(42_000), np.full(42_000, 3), np.full(42_000, 7)).reshape(-1, 3)
    counts = np.unique(chosen @ [49, 7, 1], return_counts=True)[1]
    assert len(counts) == 35
    assert stats.chisquare(counts).pvalue > 1e-4


def test_predictions_are_uniform_over_all_text_positions():
    examples, _ = examples_of([(60, 65)] * 20_000)
    position = examples.where - np.repeat(examples.ends[:-1], examples.num_predictions)
    counts = np.bincount(position, minlength=128)
    assert counts[[0, 61, 127]].tolist() == [0, 0, 0]
    text_counts = np.delete(counts, [0, 61, 127])
    # Fixed sample sizes without replacement vary less than a multinomial by the factor (1 - 19 / 125).
    statistic = stats.chisquare(text_counts).statistic / (1 - 19 / 125)
    assert 1e-4 < stats.chi2.sf(statistic, 124) < 1 - 1e-4


def test_fact_24_examples_start_with_cls_and_end_with_sep():
    examples, _ = examples_of([(60, 65), (126, 0), (1, 0), (1, 1), (5, 9)], random_share=0.0)
    batch = rows(examples, SPECIAL, width=128, num_slots=20, sentence_order=True)
    ids, lengths = batch["input_ids"], batch["lengths"]
    assert lengths.tolist() == [128, 128, 3, 5, 17]
    assert (ids[:, 0] == 257).all()
    assert (ids == 258).sum(axis=1).tolist() == [2, 1, 1, 2, 2]
    assert (ids[np.arange(5), lengths - 1] == 258).all()
    assert (batch["input_mask"] == (np.arange(128) < lengths[:, None])).all()
    assert batch["token_type_ids"].sum(axis=1).tolist() == [66, 0, 0, 2, 10]
    assert batch["token_type_ids"][0, 61:63].tolist() == [0, 1]


def test_fact_25_number_of_predictions():
    lengths = np.arange(3, 400)
    expected = [min(20, max(1, int(0.15 * length))) for length in lengths]
    assert num_predictions(masking(), lengths, lengths - 2).tolist() == expected
    examples, _ = examples_of([(60, 65), (126, 0), (1, 0)])
    assert examples.num_predictions.tolist() == [19, 19, 1]


def test_fact_26_shares_of_mask_keep_and_random():
    examples, _ = examples_of([(60, 65)] * 6000)
    assert len(examples.where) == 114_000
    seen = examples.ids[examples.where]
    # A random token is the original one once in 739 times.
    is_mask, is_kept = seen == SPECIAL.mask, seen == examples.originals
    assert abs(is_mask.mean() - 0.8) < 0.005
    assert abs(is_kept.mean() - 0.1 - 0.1 / 739) < 0.005
    is_random = ~is_mask & ~is_kept
    assert abs(is_random.mean() - 0.1) < 0.005
    assert (seen[is_random] >= 261).all()
    counts = np.bincount(seen[is_random] - 261, minlength=739)
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(("mask_share", "random_share"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.25)])
def test_other_shares(mask_share, random_share):
    examples, _ = examples_of([(60, 65)] * 1000, mask_share=mask_share, random_share=random_share)
    seen = examples.ids[examples.where]
    assert abs((seen == SPECIAL.mask).mean() - mask_share) < 0.015
    assert abs((seen == examples.originals).mean() - (1 - mask_share - random_share)) < 0.015


def test_whole_vocabulary_replacement_reaches_control_ids_and_hides_random_pads():
    segments, text = segments_of([(60, 65)] * 3000)
    everything = masking(replacement_ids=np.arange(VOCAB_SIZE), mask_share=0.0, random_share=1.0)
    examples = assemble(segments, text, keys_of(3000), everything, SPECIAL)
    batch = rows(examples, SPECIAL, width=128, num_slots=20, sentence_order=True)
    is_pad = batch["input_ids"] == SPECIAL.pad
    assert is_pad.any()
    assert (batch["input_mask"] == ~is_pad).all()
    assert stats.chisquare(np.bincount(examples.ids[examples.where], minlength=VOCAB_SIZE)).pvalue > 1e-4


@given(pairs=PAIRS, unit=UNITS, rate=st.sampled_from([0.15, 0.3, 0.9]), seed=st.integers(0, 2**32))
def test_fact_27_unmasking_restores_the_row_and_slots_ascend(pairs, unit, rate, seed):
    examples, text = examples_of(pairs, seed, unit=unit, rate=rate)
    batch = rows(examples, SPECIAL, width=96, num_slots=20, sentence_order=True)
    ids, row_begin = restored(batch), 0
    for b, (first, second) in enumerate(pairs):
        a, c = text[row_begin : row_begin + first], text[row_begin + first : row_begin + first + second]
        expected = [257, *a, 258, *c, 258] if second else [257, *a, 258]
        row_begin += first + second
        assert ids[b].tolist() == expected + [260] * (96 - len(expected))
        num = int(batch["masked_lm_weights"][b].sum())
        budget = min(20, max(1, int(rate * len(expected))), first + second)
        assert 1 <= num <= budget
        assert unit == "whole_word" or num == budget
        assert batch["masked_lm_weights"][b].tolist() == [1.0] * num + [0.0] * (20 - num)
        positions = batch["masked_lm_positions"][b]
        assert (np.diff(positions[:num]) > 0).all()
        assert not positions[num:].any()
        assert not batch["masked_lm_ids"][b, num:].any()
        assert not np.isin(np.array(expected)[positions[:num]], [257, 258]).any()


@given(pairs=PAIRS, unit=UNITS, seed=st.integers(0, 2**32), capacity=st.sampled_from([None, 128, 1024]))
def test_packed_and_rows_hold_the_same_examples(pairs, unit, seed, capacity):
    examples, _ = examples_of(pairs, seed, unit=unit)
    r = rows(examples, SPECIAL, width=96, num_slots=20, sentence_order=True)
    p = packed(examples, SPECIAL, sentence_order=True, capacity=capacity, masking_rate=0.15)
    cu, lengths = p["cu_seqlens"], p["lengths"]
    assert (r["lengths"] == lengths).all()
    assert (np.diff(cu) == lengths).all()
    for b, length in enumerate(lengths):
        part = slice(cu[b], cu[b + 1])
        assert (p["input_ids"][part] == r["input_ids"][b, :length]).all()
        assert (p["token_type_ids"][part] == r["token_type_ids"][b, :length]).all()
        assert (p["positions"][part] == np.arange(length)).all()
    is_used = r["masked_lm_weights"] > 0
    num = int(is_used.sum())
    assert (p["masked_lm_positions"][:num] == (r["masked_lm_positions"] + cu[:-1, None])[is_used]).all()
    assert (p["masked_lm_ids"][:num] == r["masked_lm_ids"][is_used]).all()
    assert p["masked_lm_weights"].sum() == num == p["masked_lm_weights"][:num].sum()
    assert (p["next_sentence_label"] == r["next_sentence_label"]).all()
    if capacity is None:
        assert len(p["input_ids"]) == cu[-1]
        assert len(p["masked_lm_ids"]) == num
    else:
        assert len(p["input_ids"]) % capacity == 0
        assert (p["input_ids"][cu[-1] :] == SPECIAL.pad).all()
        assert len(p["masked_lm_ids"]) % int(0.15 * capacity) == 0


def test_fact_28_another_key_gives_another_mask():
    segments, text = segments_of([(60, 65)])
    first, second = (assemble(segments, text, keys_of(1, seed), masking(), SPECIAL).where for seed in (1, 2))
    assert first.tolist() != second.tolist()


def test_an_empty_batch_has_the_same_arrays():
    for unit in ("token", "whole_word", "span"):
        examples, _ = examples_of([], unit=unit)
        full, _ = examples_of([(3, 4)], unit=unit)
        for layout, options in ((rows, {"width": 16, "num_slots": 2}), (packed, {}), (packed, {"capacity": 64})):
            empty = layout(examples, SPECIAL, sentence_order=True, **options)
            some = layout(full, SPECIAL, sentence_order=True, **options)
            assert {k: (v.dtype, v.ndim) for k, v in empty.items()} == {k: (v.dtype, v.ndim) for k, v in some.items()}


@settings(max_examples=60)
@given(
    pairs=PAIRS,
    word_length=st.sampled_from([1.5, 4, 9]),
    rate=st.sampled_from([0.15, 0.5, 0.9]),
    seed=st.integers(0, 2**32),
)
def test_whole_words_are_hidden_whole(pairs, word_length, rate, seed):
    starts = IS_WORD_START if word_length == 1.5 else np.arange(VOCAB_SIZE) % word_length == 0
    whole_words = masking(unit="whole_word", is_word_start=starts, rate=rate, max_predictions=80)
    segments, text = segments_of(pairs)
    num_text = segments.num_text
    begins = np.cumsum(segments.lengths_B2.ravel()) - segments.lengths_B2.ravel()
    begins = begins[segments.lengths_B2.ravel() > 0]
    num, candidates = choose(
        whole_words, keys_of(len(pairs), seed), num_text + 2 + segments.is_pair, num_text, text, begins
    )
    is_start = starts[text]
    is_start[begins] = True
    word = np.cumsum(is_start) - 1
    chosen = candidates + np.repeat(np.cumsum(num_text) - num_text, num)
    is_chosen = np.bincount(chosen, minlength=len(text)).astype(bool)
    row_of_text = np.repeat(np.arange(len(pairs)), num_text)
    assert np.bincount(row_of_text[is_chosen], minlength=len(pairs)).tolist() == num.tolist()
    budget = num_predictions(whole_words, num_text + 2 + segments.is_pair, num_text)
    for w in range(word[-1] + 1):
        members = is_chosen[word == w]
        row = row_of_text[word == w][0]
        # A word is cut only where no word of the example fits into the budget.
        fits = np.bincount(word[row_of_text == row])[word[row_of_text == row][0] :].min() <= budget[row]
        assert members.all() or not members.any() or not fits
        # Whatever still fitted was taken.
        assert members.any() or len(members) > budget[row] - num[row]


def test_whole_words_are_all_equally_likely_where_all_have_one_token():
    text = np.full(120 * 3000, 262)  # 262 begins a word
    num_text = np.full(3000, 120)
    num, candidates = choose(
        masking(unit="whole_word"), keys_of(3000), num_text + 2, num_text, text, np.cumsum(num_text) - 120
    )
    assert (num == 18).all()
    statistic = stats.chisquare(np.bincount(candidates, minlength=120)).statistic / (1 - 18 / 120)
    assert 1e-4 < stats.chi2.sf(statistic, 119) < 1 - 1e-4


def test_where_no_word_fits_the_first_tokens_of_a_random_word_are_hidden():
    # Three words of ten tokens in each text, and a budget of four.
    num_text, starts = np.full(3000, 30), np.arange(VOCAB_SIZE) % 10 == 0
    text, begins = np.tile(np.arange(30), 3000), 30 * np.arange(3000)
    whole_words = masking(unit="whole_word", is_word_start=starts)
    num, candidates = choose(whole_words, keys_of(3000), num_text + 2, num_text, text, begins)
    assert (num == 4).all()
    first = candidates[::4]
    assert (candidates.reshape(-1, 4) == first[:, None] + np.arange(4)).all()
    words, counts = np.unique(first, return_counts=True)
    assert words.tolist() == [0, 10, 20]
    assert stats.chisquare(counts).pvalue > 1e-4


def test_spans_have_the_configured_mean_length_and_never_touch():
    examples, _ = examples_of([(510, 0)] * 500, unit="span", mean_span_length=3.8, max_predictions=200)
    assert (examples.num_predictions == 76).all()
    where = examples.where
    begins = np.flatnonzero(np.diff(where, prepend=-2) > 1)
    lengths = np.diff(np.append(begins, len(where)))
    assert abs(lengths.mean() - 3.8) < 0.01
    # Parts of a random composition: P(length = k) falls like a geometric distribution.
    shares = np.bincount(lengths, minlength=10)[1:10] / len(lengths)
    assert (np.diff(shares) < 0).all()
    position = where - np.repeat(examples.ends[:-1], 76)
    middle = np.bincount(position, minlength=512)[20:490]
    assert abs(middle.mean() / (500 * 76 / 510) - 1) < 0.02


def test_slots_count_up_in_every_row():
    assert slots(np.array([2, 0, 3])).tolist() == [0, 1, 0, 1, 2]
    assert slots(np.array([], np.int64)).tolist() == []
