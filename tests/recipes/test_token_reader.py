"""Texts, words and passages as encoders of tokens read them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.errors import ConfigError, DataError, InputError
from pretrainkit.recipes.token_reader import ControlTokens, TokenReader, windows_of
from support.remedies import followed

CLS, SEP, UNKNOWN = 500, 501, 502
CONTROL = ControlTokens((CLS,), (SEP,), (SEP,))


def encode(texts):
    """A token per character that is no space."""
    ids = [[ord(letter) for letter in text if letter != " "] for text in texts]
    return np.array([i for one in ids for i in one], np.int32), np.array([len(one) for one in ids], np.int64)


def encode_with_offsets(texts):
    places = [(k, k + 1) for text in texts for k, letter in enumerate(text) if letter != " "]
    return *encode(texts), np.array(places, np.int64).reshape(-1, 2)


READER = TokenReader(encode, CONTROL, "letters", unknown=UNKNOWN, encode_with_offsets=encode_with_offsets)
WORDS = st.lists(st.lists(st.text("abc", max_size=6), max_size=12), min_size=1, max_size=5)


@given(words=WORDS, max_length=st.integers(3, 30))
def test_words_are_read_whole_and_in_order_and_cut_ones_are_counted(words, max_length):
    read = READER.read_words(words, max_length)
    for index, own in enumerate(words):
        batch = read.build(np.array([index]))
        starts, ids = read.word_starts(index), batch["input_ids"]
        num_kept = len(starts) - 1
        assert read.num_cut()[index] == len(own) - num_kept
        found = [ids[begin:end].tolist() for begin, end in pairwise(starts)]
        assert found == [[ord(letter) for letter in word] or [UNKNOWN] for word in own[:num_kept]]
        assert len(ids) == read.lengths()[index] <= max_length
        assert (ids[0], ids[-1], starts[-1]) == (CLS, SEP, len(ids) - 1)
        if num_kept < len(own):
            assert len(ids) + max(1, len(own[num_kept])) > max_length


def test_ids_that_the_encoder_does_not_read_are_refused():
    """They would be an index error of torch, in the middle of training."""
    for read in (
        lambda reader: reader.read([["ab", "c"]], 9),
        lambda reader: reader.read_words([["ab", "c"]], 9),
        lambda reader: reader.read_passages([("a", "bc")], 16, 1, 4),
    ):
        with pytest.raises(DataError, match="the tokenizer gives the id 501, but the encoder reads ids below 500") as e:
            read(replace(READER, num_ids=500))
        advice = followed(e.value, "recipes/token_reader.py: the tokenizer gives the id")
        assert "data.tokenizer=FOLDER" in advice
        read(replace(READER, num_ids=502))


PAIRS = st.lists(st.tuples(st.text("ab ", max_size=9), st.text("xyz ", max_size=60)), min_size=1, max_size=4)


@given(pairs=PAIRS, max_length=st.integers(16, 30), stride=st.integers(0, 5))
def test_windows_together_show_the_whole_context_and_repeat_the_stride(pairs, max_length, stride):
    read = READER.read_passages(pairs, max_length, stride, max_first=4)
    owner = read.example_of()
    for number, (question, context) in enumerate(pairs):
        asked = [ord(letter) for letter in question if letter != " "][:4]
        shown = []
        for window in np.flatnonzero(owner == number):
            batch, places = read.build(np.array([window])), read.offsets(window)
            ids = batch["input_ids"]
            assert len(ids) == len(places) == read.lengths()[window] <= max_length
            assert ids[: len(asked) + 2].tolist() == [CLS, *asked, SEP]
            real = places[:, 0] >= 0
            assert [context[begin:end] for begin, end in places[real]] == [chr(i) for i in ids[real]]
            assert batch["token_type_ids"].tolist() == [0] * (len(asked) + 2) + [1] * (len(ids) - len(asked) - 2)
            assert read.no_answer_slot(window) == 0
            own = places[real, 0].tolist()
            if shown:
                assert own[:stride] == shown[len(shown) - stride :]
                own = own[stride:]
            shown += own
        assert shown == [k for k, letter in enumerate(context) if letter != " "]


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 9), st.integers(0, 4))
def test_no_window_is_superfluous(sizes, new, stride):
    rooms = np.full(len(sizes), new + stride)
    begins, lengths, owner = windows_of(np.array(sizes), rooms, stride)
    for number, size in enumerate(sizes):
        ends = (begins + lengths)[owner == number]
        assert ends[-1] == size
        assert (ends[:-1] < size).all()


def test_a_stride_that_leaves_nothing_new_is_refused():
    with pytest.raises(ConfigError, match="stride"):
        READER.read_passages([("aaaa", "x" * 99)], 12, 5, 4)


def test_a_tokenizer_without_places_reads_no_passages():
    with pytest.raises(InputError, match="map its slots to positions in a text"):
        TokenReader(encode, CONTROL, "letters").read_passages([("a", "x")], 12, 1, 4)
