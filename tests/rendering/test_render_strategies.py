"""Words and bigrams instead of running text."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.rendering.parts import bigrams


def test_with_words_a_running_text_is_its_list_of_words(renderer, change):
    words = change(renderer, strategy="words")
    assert np.array_equal(words.columns("some  running text"), renderer.columns(["some", "running", "text"]))
    pair = words(("some text", "more of it"))
    first = pair.sep_patches[0]
    assert np.array_equal(pair.columns_XP[: first * 16], renderer.columns(["some", "text"])[: first * 16])


@given(text=st.text("ab \n", max_size=30))
def test_bigrams_hold_every_letter_once_and_in_order(text):
    found = bigrams(text, space_patch=False)
    assert "".join(pair for _, pair in found) == "".join(text.split())
    assert all(text[start : start + len(pair)] == pair for start, pair in found)
    assert all(len(pair) <= 2 for _, pair in found)


def test_bigrams_begin_anew_with_each_word():
    assert bigrams("abc de", space_patch=False) == [(0, "ab"), (2, "c"), (4, "de")]
    assert bigrams(" abc  de ", space_patch=True) == [(1, "ab"), (3, "c"), (4, " "), (6, "de")]


def test_a_bigram_is_its_patch_and_nothing_else(renderer, change):
    pairs = change(renderer, strategy="bigrams")
    encoding = pairs("abcd WWx", return_offset_mapping=True)
    assert encoding.num_text_patches == 4
    assert encoding.offset_mapping[:4] == ((0, 2), (2, 4), (5, 7), (7, 8))
    for alone, index in (("cd", 1), ("WW", 2), ("x", 3)):
        assert np.array_equal(encoding.patches[index], pairs(alone).patches[0])
    spaced = change(renderer, strategy="bigrams", space_patch=True)("abcd WWx")
    assert spaced.num_text_patches == 5
    assert (spaced.patches[2] == 255).all()


def test_bigrams_end_with_the_canvas(renderer, change):
    short = change(renderer, strategy="bigrams", max_seq_length=6)
    encoding = short("abcdefghijklmnop", return_offset_mapping=True, return_overflowing_patches=True)
    assert encoding.num_text_patches == 5
    assert encoding.overflowing_patches[0].offset_mapping[0] == (10, 12)
    assert short("").num_text_patches == 1
