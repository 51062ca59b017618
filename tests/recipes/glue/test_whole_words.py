"""Answers that end between words, and text that runs from right to left."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.recipes.glue.kinds.spans import candidates, slots_of, whole_words


@pytest.mark.parametrize(
    ("text", "rough", "expected"),
    [
        ("by John Elway, who", "y John Elway, ", "John Elway"),
        ("the Saxon Garden was", "xon Garden w", "Saxon Garden"),
        ("in 1,946 ships", "n 1,94", "1,946"),
        ("I don't know", "on't k", "don't"),
        ("Manning's team", "Manning", "Manning"),
        ("a six-time winner", "six-ti", "six"),
        ("(see) (a)", ") (", ") ("),
        ("w o w", "o ", "o"),
        ("the moonlight", "oon", "moonlight"),
        ("北京是首都", "京是", "京是"),
    ],
)
def test_a_word_belongs_to_an_answer_by_more_than_half(text: str, rough: str, expected: str) -> None:
    begin = text.index(rough)
    found = whole_words(text, begin, begin + len(rough))
    assert text[slice(*found)] == expected


@settings(max_examples=30)
@given(words=st.lists(st.text("abmw", min_size=1, max_size=9), min_size=1, max_size=9), data=st.data())
def test_whole_words_stay_as_they_are(words: list[str], data: st.DataObject) -> None:
    text = " ".join(words)
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    begin = len(" ".join(words[:first])) + (first > 0)
    end = len(" ".join(words[: last + 1]))
    assert whole_words(text, begin, end) == (begin, end)


RIGHT_TO_LEFT = np.array([[-1, -1], [9, 12], [6, 9], [3, 6], [0, 3], [-1, -1]])


def test_an_answer_from_right_to_left_begins_in_a_later_slot() -> None:
    assert slots_of(RIGHT_TO_LEFT, (4, 8)) == (3, 2)
    assert slots_of(RIGHT_TO_LEFT, (4, 5)) == (3, 3)
    assert slots_of(RIGHT_TO_LEFT, (0, 12)) == (4, 1)
    assert slots_of(RIGHT_TO_LEFT, (10, 14)) is None


def test_candidates_run_in_the_direction_of_their_text() -> None:
    scores = np.zeros((6, 2))
    scores[3, 0], scores[2, 1] = 5, 4
    best = candidates(scores, RIGHT_TO_LEFT, 20, 30)[0]
    assert (best.score, best.begin, best.end) == (9, 3, 9)
    assert all(one.begin < one.end for one in candidates(scores, RIGHT_TO_LEFT, 20, 30))
    assert all(one.end - one.begin <= 6 for one in candidates(scores, RIGHT_TO_LEFT, 20, 2))
