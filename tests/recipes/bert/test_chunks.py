"""Chunks and segments: laws over random documents, and the acceptance facts 20 to 22 of Sabertooth."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pretrainkit.recipes.bert.chunks import ChunkIndex, chunk_index, join
from pretrainkit.recipes.bert.segments import coin_tosses, draw_segments, example_lengths, removed_tokens
from pretrainkit.rng import fold, stream_key

CORPORA = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=6)
"""Documents as lists of sentence lengths."""


def index_of(documents: list[list[int]], *, chunking="sabertooth", max_tokens=126, sentence_order=True) -> ChunkIndex:
    lengths = [length for document in documents for length in document]
    return chunk_index(
        np.cumsum(lengths),
        np.cumsum([len(document) for document in documents]),
        chunking=chunking,
        max_tokens=max_tokens,
        sentence_order=sentence_order,
    )


def draw(index: ChunkIndex, num: int = 1, seed: int = 0, max_tokens: int = 126, **options):
    """Segments of every chunk, `num` times with other keys."""
    rows = np.tile(np.arange(len(index)), num)
    keys = fold(stream_key(seed, "test"), np.arange(len(rows)))
    options = {"sentence_order": True, "swap_probability": 0.5} | options
    return rows, draw_segments(index, rows, keys, max_tokens=max_tokens, **options)


def greedy_by_hand(document: list[int], max_tokens: int) -> list[list[int]]:
    """Sabertooth's chunking of one document, sentence by sentence."""
    chunks, waiting = [], list(document)
    while waiting:
        chunk: list[int] = []
        while waiting and sum(chunk) < max_tokens - 1:
            chunk.append(waiting.pop(0))
        chunks.append(chunk)
    return chunks


@given(documents=CORPORA, max_tokens=st.integers(6, 60))
def test_sabertooth_chunks_equal_the_sentence_by_sentence_rule(documents, max_tokens):
    index = index_of(documents, max_tokens=max_tokens)
    by_hand = [greedy_by_hand(document, max_tokens) for document in documents]
    flat = [chunk for chunks in by_hand for chunk in chunks]
    assert index.lengths.tolist() == [sum(chunk) for chunk in flat]
    assert index.starts.tolist() == [sum(map(sum, flat[:i])) for i in range(len(flat))]
    assert index.document_sizes.tolist() == [len(chunks) for chunks in by_hand]
    inner = [np.cumsum(chunk)[:-1].tolist() for chunk in flat]
    assert [index.inner_ends[a:b].tolist() for a, b in pairwise(index.inner_begins)] == inner


@given(documents=CORPORA, max_tokens=st.integers(6, 60), sentence_order=st.booleans())
def test_lossless_chunks_hold_every_token_once_and_always_fit(documents, max_tokens, sentence_order):
    index = index_of(documents, chunking="lossless", max_tokens=max_tokens, sentence_order=sentence_order)
    assert index.starts[0] == 0
    assert (index.starts[1:] == index.starts[:-1] + index.lengths[:-1]).all()
    assert index.starts[-1] + index.lengths[-1] == sum(map(sum, documents))
    assert index.num_tokens_lost(max_tokens, sentence_order) == 0
    # No chunk crosses a document, and none ends before it must: the next sentence (or its first piece) would not fit.
    document_ends = np.cumsum([sum(document) for document in documents])
    sentence_ends = np.cumsum([length for document in documents for length in document])
    chunk_ends = index.starts + index.lengths
    assert set(document_ends) <= set(chunk_ends)
    for start, end in zip(index.starts, chunk_ends, strict=True):
        if end not in document_ends:
            next_end = min(sentence_ends[sentence_ends > end][0], end + max_tokens)
            assert next_end - start > max_tokens - sentence_order
    _, segments = draw(index, max_tokens=max_tokens, sentence_order=sentence_order)
    assert segments.num_text.sum() == document_ends[-1]


@given(
    documents=CORPORA,
    max_tokens=st.integers(6, 60),
    chunking=st.sampled_from(["sabertooth", "lossless"]),
    sentence_order=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_examples_fit_their_width_and_no_side_is_empty(documents, max_tokens, chunking, sentence_order, seed):
    index = index_of(documents, chunking=chunking, max_tokens=max_tokens, sentence_order=sentence_order)
    rows, segments = draw(index, num=3, seed=seed, max_tokens=max_tokens, sentence_order=sentence_order)
    num_inner = index.num_inner[rows]
    assert (segments.lengths_B2[:, 0] >= 1).all()
    assert ((segments.lengths_B2[:, 1] >= 1) == ((num_inner > 0) & sentence_order)).all()
    assert (segments.num_text + segments.is_pair <= max_tokens).all()
    assert (segments.starts_B2 >= index.starts[rows][:, None]).all()
    inside = segments.starts_B2 + segments.lengths_B2 <= (index.starts + index.lengths)[rows][:, None]
    assert (inside | (segments.lengths_B2 == 0)).all()
    assert not segments.is_swapped[num_inner == 0].any()
    in_document_order = segments.starts_B2[:, 0] < segments.starts_B2[:, 1]
    assert (in_document_order != segments.is_swapped)[segments.is_pair].all()
    lengths = example_lengths(index, rows, max_tokens=max_tokens, sentence_order=sentence_order)
    assert (lengths == segments.num_text + 2 + segments.is_pair).all()


@given(first=st.integers(1, 200), second=st.integers(1, 200), limit=st.integers(5, 130))
def test_removed_tokens_equal_removal_one_at_a_time(first, second, limit):
    excess = max(0, first + second - limit)
    a, b = first, second
    while a + b > limit:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    removed = removed_tokens(np.array([first]), np.array([second]), np.array([excess]))
    assert [int(r[0]) for r in removed] == [first - a, second - b]


@pytest.mark.parametrize("num", [1, 9, 64, 65, 200])
def test_coin_tosses_are_binomial(num):
    heads = coin_tosses(fold(stream_key(1, "coins"), np.arange(20_000)), np.full(20_000, num))
    assert heads.min() >= 0
    assert heads.max() <= num
    assert abs(heads.mean() - num / 2) < 5 * np.sqrt(num / 4 / 20_000)
    assert abs(heads.var() - num / 4) < 0.05 * num / 4 + 0.02


def test_zero_coin_tosses_have_no_heads():
    assert coin_tosses(fold(3, np.arange(4)), np.array([0, 3, 0, 0]))[[0, 2, 3]].tolist() == [0, 0, 0]


def test_fact_20_hundred_sentences_of_ten_tokens_give_seven_full_pairs_and_one_of_ninety():
    index = index_of([[10] * 100])
    rows, segments = draw(index, num=4000)
    assert segments.is_pair.all()
    assert index.document_sizes.tolist() == [8]
    assert (segments.num_text[rows < 7] == 125).all()
    assert (segments.num_text[rows == 7] == 90).all()
    # The last chunk is not trimmed: the split is the length of the part that is first in the document.
    first = np.where(segments.is_swapped, segments.lengths_B2[:, 1], segments.lengths_B2[:, 0])[rows == 7]
    assert stats.chisquare(np.bincount(first // 10, minlength=9)[1:]).pvalue > 1e-4


def test_fact_20_split_positions_are_uniform_over_all_inner_sentence_ends():
    index = index_of([[9] * 13])  # 117 tokens: never trimmed, 12 places to split
    _, segments = draw(index, num=24_000, swap_probability=0.0)
    counts = np.bincount(segments.lengths_B2[:, 0] // 9, minlength=13)[1:]
    assert len(counts) == 12
    assert stats.chisquare(counts).pvalue > 1e-4


def test_fact_21_one_long_sentence_gives_one_single_row_of_126_with_random_start():
    index = index_of([[300]])
    _, segments = draw(index, num=5000)
    assert len(index) == 1
    assert not segments.is_pair.any()
    assert (segments.lengths_B2[:, 0] == 126).all()
    starts = segments.starts_B2[:, 0]  # binomial(174, 1/2)
    assert abs(starts.mean() - 87) < 0.5
    assert abs(starts.std() - np.sqrt(174) / 2) < 0.3
    assert index.num_tokens_lost(126, True) == 174


def test_fact_21_lossless_cuts_a_long_sentence_into_pieces():
    index = index_of([[300]], chunking="lossless")
    assert index.lengths.tolist() == [126, 126, 48]
    assert index.num_inner.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        ([124, 10], [(115, 10)]),
        ([125, 10], [(125, 0), (10, 0)]),
        ([126, 127], [(126, 0), (126, 0)]),
        ([10, 124], [(10, 115)]),
        ([60, 64, 70], [(60, 65), (63, 62)]),
    ],
)
def test_fact_22_lengths_after_trimming(sentences, expected):
    _, segments = draw(index_of([sentences]), num=200, swap_probability=0.0)
    seen = {tuple(pair) for pair in segments.lengths_B2.tolist()}
    assert seen == set(expected)


def test_fact_22_a_pair_loses_tokens_at_both_ends_of_its_longer_side():
    _, segments = draw(index_of([[124, 10]]), num=5000, swap_probability=0.0)
    front = segments.starts_B2[:, 0]  # of 9 removed tokens
    expected = stats.binom.pmf(np.arange(10), 9, 0.5) * len(front)
    assert stats.chisquare(np.bincount(front, minlength=10), expected).pvalue > 1e-4
    assert (segments.starts_B2[:, 1] == 124).all()


def test_without_sentence_order_a_chunk_is_one_segment_of_up_to_126():
    index = index_of([[10] * 100], sentence_order=False)
    _, segments = draw(index, sentence_order=False)
    assert not segments.is_pair.any()
    assert segments.lengths_B2[:, 0].tolist() == [126] * 7 + [90]


def test_options_do_not_change_each_others_draws():
    index = index_of([[10] * 100, [300], [124, 10]])
    _, swapped = draw(index, num=50, swap_probability=1.0)
    _, plain = draw(index, num=50, swap_probability=0.0)
    assert (swapped.is_swapped == swapped.is_pair).all()
    pairs = plain.is_pair
    assert (swapped.starts_B2[pairs] == plain.starts_B2[pairs][:, ::-1]).all()
    assert (swapped.lengths_B2[pairs] == plain.lengths_B2[pairs][:, ::-1]).all()


@settings(max_examples=25)
@given(documents=CORPORA, cut=st.integers(0, 6), chunking=st.sampled_from(["sabertooth", "lossless"]))
def test_chunks_of_shards_joined_equal_those_of_one_shard(documents, cut, chunking):
    whole = index_of(documents, chunking=chunking, max_tokens=30)
    parts, first_token = [], 0
    for part in (documents[:cut], documents[cut:]):
        lengths = [length for document in part for length in document]
        counts = [len(document) for document in part]
        parts.append(
            chunk_index(
                np.cumsum(lengths, dtype=np.int64),
                np.cumsum(counts, dtype=np.int64),
                chunking=chunking,
                max_tokens=30,
                first_token=first_token,
            )
        )
        first_token += sum(lengths)
    joined = join(parts)
    for name in ("starts", "lengths", "inner_begins", "inner_ends", "document_sizes"):
        assert getattr(joined, name).tolist() == getattr(whole, name).tolist()
