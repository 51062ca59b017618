"""Choose the tokens that an example must predict, and hide them.

All arrays are ragged: the predictions of a batch are concatenated, example by example, ascending within each example.
All randomness comes from one uint64 key per example. The choice of positions, the kind of replacement and the random id
have separate streams, so that a change of one setting does not change the draws of the others.

Dimensions: B examples, K predictions of all examples together, M text tokens of all examples together.
Sources: Devlin et al. 2018, https://arxiv.org/abs/1810.04805 (80/10/10), and its released code of May 2019 (whole
words); Joshi et al. 2019, https://arxiv.org/abs/1907.10529 (spans).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.subsets import slots, subsets
from pretrainkit.recipes.bert.config import BertObjectiveConfig
from pretrainkit.rng import Keys, fold, stream_key

Ints = NDArray[np.int64]

_POSITION_STREAMS = np.array([[stream_key(0, "bert", name)] for name in ("mask positions", "span cuts")], np.uint64)
_REPLACEMENT_STREAMS = np.array([[stream_key(0, "bert", name)] for name in ("kind", "replacement ids")], np.uint64)
_32 = np.uint64(32)


@dataclass(frozen=True)
class Masking:
    """Settings for choosing and hiding predictions."""

    objective: BertObjectiveConfig
    """The unit, the length of spans, and the shares of the replacements. mask_unit token: single positions, all sets of
    equal size are equally likely. whole_word, span: see the functions below."""
    rate: float
    """Share of an example's tokens (with [CLS] and [SEP]) to predict, in (0, 1)."""
    max_predictions: int
    """Maximum number of predictions of one example."""
    mask_id: int
    """Id of the mask token."""
    replacement_ids: NDArray[np.integer]
    """Ids from which random tokens are drawn, all equally likely."""
    is_word_start: NDArray[np.bool_] | None
    """(V,) True for ids that begin a word; only needed for whole words."""


def num_predictions(masking: Masking, lengths: Ints, num_text: Ints) -> Ints:
    """Return the (B,) budgets: min(max_predictions, max(1, floor(rate x length))), at most the number of text tokens.
    `lengths` include [CLS] and [SEP]; `num_text` does not and is at least 1."""
    by_rate = np.maximum(1, (masking.rate * lengths).astype(np.int64))
    return np.minimum(np.minimum(by_rate, masking.max_predictions), num_text)


def choose(
    masking: Masking, keys: Keys, lengths: Ints, num_text: Ints, text: NDArray[np.integer], begins: Ints
) -> tuple[Ints, Ints]:
    """Choose the tokens to predict. `lengths` and `num_text` are as in `num_predictions`.

    Args:
        text: (M,) ids of the text tokens; only read for whole words.
        begins: Indices into `text` where a word begins whatever the id is: the first tokens of segments.

    Returns:
        (B,) number of predictions per example, and (K,) index of each prediction among the text tokens of its example
        (without [CLS] and [SEP]), ascending within an example.
    """
    num = num_predictions(masking, lengths, num_text)
    if not len(num):
        return num, num
    place_keys, cut_keys = fold(keys, _POSITION_STREAMS)
    if masking.objective.mask_unit == "token":
        return num, subsets(place_keys, num, num_text)
    if masking.objective.mask_unit == "span":
        return num, _spans(place_keys, cut_keys, num, num_text, masking.objective.mean_span_length)
    assert masking.is_word_start is not None
    is_start = masking.is_word_start[text]
    is_start[begins] = True
    return _whole_words(place_keys, num, num_text, is_start)


def _spans(place_keys: Keys, cut_keys: Keys, num: Ints, num_text: Ints, mean_length: float) -> Ints:
    """Choose exactly `num` tokens in round(num / mean_length) spans (at least one) that never touch each other.

    The lengths of the spans are a uniformly random composition of `num` (close to geometric). Their places are a
    uniformly random set of the gaps between unmasked tokens. A span may extend from the first segment to the second.
    """
    num_spans = np.clip(np.rint(num / mean_length).astype(np.int64), 1, np.minimum(num, num_text - num + 1))
    gaps = subsets(place_keys, num_spans, num_text - num + 1)
    cuts = subsets(cut_keys, num_spans - 1, num - 1) + 1
    row_begin = np.cumsum(num) - num
    # Hidden token k of a row is k places after its span's gap, because gaps are numbered by the unmasked tokens.
    is_cut = np.zeros(int(num.sum()), np.int64)
    is_cut[cuts + np.repeat(row_begin, num_spans - 1)] = 1
    is_cut[row_begin[1:]] = 1  # the first span of the next row
    return gaps[np.cumsum(is_cut)] + slots(num)


def _whole_words(keys: Keys, num: Ints, num_text: Ints, is_start: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Choose whole words in random order. A word is taken if all of it fits into the rest of the budget, else skipped.

    So an example has at most `num` predictions, and fewer only if every other word is longer than the rest of the
    budget. If no word fits at all, the first `num` tokens of the first drawn word are taken, so that every example has
    a prediction.
    """
    row_end = np.cumsum(num_text)
    row_begin = row_end - num_text
    num_words = np.add.reduceat(is_start, row_begin, dtype=np.int64)
    first_word, most = np.cumsum(num_words) - num_words, int(num_words.max())
    begins = np.flatnonzero(is_start)
    word_lengths = np.diff(begins, append=len(is_start))

    # Sort the words by random numbers. The low bits have the word's place, which identifies it and breaks ties.
    place = slots(num_words)
    shift = np.uint64(most.bit_length())
    draws = fold(np.repeat(keys, num_words), place)
    priority = np.full((len(num), most), np.uint64(2**64 - 1))
    priority[np.arange(most) < num_words[:, None]] = (draws >> shift << shift) | place.view(np.uint64)
    priority.sort(axis=1)
    order = (priority & ((np.uint64(1) << shift) - np.uint64(1))).view(np.int64)

    left = num.copy()
    edges = np.zeros(len(is_start) + 1, np.int8)  # +1 where a hidden span begins, -1 where it ends
    turn = 0
    while turn < most and left.any():
        word = first_word + np.minimum(order[:, turn], num_words - 1)
        length = word_lengths[word]
        is_taken = (length <= left) & (turn < num_words)
        left -= length * is_taken
        begin = begins[word[is_taken]]
        edges[begin] += 1
        edges[begin + length[is_taken]] -= 1
        turn += 1
    is_stuck = left == num
    begin = begins[(first_word + order[:, 0])[is_stuck]]
    edges[begin] += 1
    edges[begin + num[is_stuck]] -= 1
    taken = np.where(is_stuck, num, num - left)
    chosen = np.flatnonzero(np.cumsum(edges[:-1], dtype=np.int8))
    return taken, chosen - np.repeat(row_begin, taken)


def hide(masking: Masking, keys: Keys, num: Ints, ids: NDArray[np.int32], where: Ints) -> NDArray[np.int32]:
    """Keep each of `ids[where]`, or replace it in place by `mask_id` or a random id. Return the original ids, (K,).

    `num`: (B,) predictions per example; `where`: (K,) indices into the tokens of the whole batch, example by example.
    """
    original = ids[where]
    place = slots(num)
    kind_keys, id_keys = fold(keys, _REPLACEMENT_STREAMS)
    # The upper 53 bits are a number in [0, 1). The shares divide this interval in the order keep, mask, random.
    kind = (fold(np.repeat(kind_keys, num), place) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    mask_share, random_share = masking.objective.mask_share, masking.objective.random_share
    keep_share = max(0.0, 1.0 - mask_share - random_share)
    is_random = kind >= keep_share + mask_share if random_share > 0 else np.zeros(len(kind), np.bool_)
    is_hidden = (kind >= keep_share) & ~is_random
    ids[where[is_hidden]] = masking.mask_id
    if random_share > 0:
        row = np.repeat(np.arange(len(num)), num)[is_random]
        draws = fold(id_keys[row], place[is_random])
        # 32 random bits x n / 2^32 is an index below n.
        picked = ((draws >> _32) * np.uint64(len(masking.replacement_ids))) >> _32
        ids[where[is_random]] = masking.replacement_ids[picked.astype(np.int64)]
    return original
