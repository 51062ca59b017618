"""Which tokens an example must predict, and what stands in their place.

Everything here is ragged: the predictions of a batch lie one after another, example by example, ascending within each.
All randomness comes from one uint64 key per example, in separate streams for the choice of positions, the kind of
replacement and the replacing id, so that changing one setting leaves the draws of the others alone.

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
    """How predictions are chosen and hidden."""

    objective: BertObjectiveConfig
    """The unit, the length of spans, and what the predicted tokens become. mask_unit token: single positions, all sets
    of that size equally likely. whole_word, span: see the functions below."""
    rate: float
    """Share of an example's tokens (with [CLS] and [SEP]) to predict, in (0, 1)."""
    max_predictions: int
    """Most predictions of one example."""
    mask_id: int
    """Id of the mask token."""
    replacement_ids: NDArray[np.integer]
    """Ids to draw random tokens from, each equally likely."""
    is_word_start: NDArray[np.bool_] | None
    """(V,) True for ids that begin a word; needed for whole words only."""


def num_predictions(masking: Masking, lengths: Ints, num_text: Ints) -> Ints:
    """(B,) budget: min(max_predictions, max(1, floor(rate x length))), never more than there are text tokens. `lengths`
    count [CLS] and [SEP], `num_text`, at least 1, does not."""
    wanted = np.maximum(1, (masking.rate * lengths).astype(np.int64))
    return np.minimum(np.minimum(wanted, masking.max_predictions), num_text)


def choose(
    masking: Masking, keys: Keys, lengths: Ints, num_text: Ints, text: NDArray[np.integer], begins: Ints
) -> tuple[Ints, Ints]:
    """What to predict; lengths and num_text as for `num_predictions`.

    Args:
        text: (M,) ids of the text tokens; only read for whole words.
        begins: Indices into `text` at which a word begins whatever the id (first tokens of segments).

    Returns:
        (B,) predictions per example, and (K,) the index of each among the text tokens of its example (no [CLS], no
        [SEP]), ascending within an example.
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
    """Exactly `num` tokens in round(num / mean_length) spans (at least one) that never touch each other.

    The spans' lengths are a uniformly random composition of `num` (close to geometric), their places a uniformly random
    set of the gaps between the tokens left alone. A span may run from the first segment into the second.
    """
    num_spans = np.clip(np.rint(num / mean_length).astype(np.int64), 1, np.minimum(num, num_text - num + 1))
    gaps = subsets(place_keys, num_spans, num_text - num + 1)
    cuts = subsets(cut_keys, num_spans - 1, num - 1) + 1
    row_begin = np.cumsum(num) - num
    # Hidden token k of a row lies k places behind its span's gap, as gaps count the tokens that stay alone.
    is_cut = np.zeros(int(num.sum()), np.int64)
    is_cut[cuts + np.repeat(row_begin, num_spans - 1)] = 1
    is_cut[row_begin[1:]] = 1  # the first span of the next row
    return gaps[np.cumsum(is_cut)] + slots(num)


def _whole_words(keys: Keys, num: Ints, num_text: Ints, is_start: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Whole words in random order, each taken if all of it still fits into the budget, else passed over.

    So an example has at most `num` predictions, and fewer only if every word left is too long for the rest. If no word
    fits at all, the first `num` tokens of the first word drawn are taken, so that every example predicts something.
    """
    row_end = np.cumsum(num_text)
    row_begin = row_end - num_text
    num_words = np.add.reduceat(is_start, row_begin, dtype=np.int64)
    first_word, most = np.cumsum(num_words) - num_words, int(num_words.max())
    begins = np.flatnonzero(is_start)
    word_lengths = np.diff(begins, append=len(is_start))

    # Words sorted by random numbers; the place of a word in the low bits says which it is and makes the order total.
    place = slots(num_words)
    shift = np.uint64(most.bit_length())
    draws = fold(np.repeat(keys, num_words), place)
    priority = np.full((len(num), most), np.uint64(2**64 - 1))
    priority[np.arange(most) < num_words[:, None]] = (draws >> shift << shift) | place.view(np.uint64)
    priority.sort(axis=1)
    order = (priority & ((np.uint64(1) << shift) - np.uint64(1))).view(np.int64)

    left = num.copy()
    edges = np.zeros(len(is_start) + 1, np.int8)  # +1 where a hidden stretch begins, -1 where one ends
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
    """Replace `ids[where]` in place: kept, `mask_id`, or random, by one draw each; returns the original ids, (K,).

    `num`: (B,) predictions per example; `where`: (K,) indices into the tokens of the whole batch, example after
    example.
    """
    original = ids[where]
    place = slots(num)
    kind_keys, id_keys = fold(keys, _REPLACEMENT_STREAMS)
    # The upper 53 bits as a number in [0, 1); shares lie on it as keep, mask, random.
    kind = (fold(np.repeat(kind_keys, num), place) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    mask_share, random_share = masking.objective.mask_share, masking.objective.random_share
    keep_share = max(0.0, 1.0 - mask_share - random_share)
    is_random = kind >= keep_share + mask_share if random_share > 0 else np.zeros(len(kind), np.bool_)
    is_hidden = (kind >= keep_share) & ~is_random
    ids[where[is_hidden]] = masking.mask_id
    if random_share > 0:
        row = np.repeat(np.arange(len(num)), num)[is_random]
        draws = fold(id_keys[row], place[is_random])
        # 32 random bits x n / 2^32: an index below n without division.
        picked = ((draws >> _32) * np.uint64(len(masking.replacement_ids))) >> _32
        ids[where[is_random]] = masking.replacement_ids[picked.astype(np.int64)]
    return original
