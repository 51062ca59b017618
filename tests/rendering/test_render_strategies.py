"""Words and bigrams instead of running text."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.rendering import Renderer, RendererConfig
from pretrainkit.rendering.bigrams import bigrams


def test_with_words_a_running_text_is_its_list_of_words(renderer, change):
    words = change(renderer, strategy="words")
    assert np.array_equal(words.columns("some  running text"), renderer.columns(["some", "running", "text"]))
    pair = words(("some text", "more of it"))
    first = pair.sep_patches[0]
    assert np.array_equal(pair.columns_XP[: first * 16], renderer.columns(["some", "text"])[: first * 16])


@given(text=st.text("ab \n", max_size=30))
def test_bigrams_hold_every_letter_once_and_in_order(text):
    found = bigrams(text, space_patch=False)
    assert "".join(pair.text for pair in found) == "".join(text.split())
    assert all(text[pair.start :].startswith(pair.text) for pair in found)
    assert all(1 <= len(pair.text) <= 2 for pair in found)


def texts(pairs):
    return [(pair.start, pair.text) for pair in pairs]


def test_each_word_begins_a_new_bigram():
    assert texts(bigrams("abc de", space_patch=False)) == [(0, "ab"), (2, "c"), (4, "de")]
    assert texts(bigrams(" abc  de ", space_patch=True)) == [(1, "ab"), (3, "c"), (5, " "), (6, "de")]


def test_each_pair_begins_a_patch_and_takes_as_many_as_it_is_wide(renderer, change):
    pairs = change(renderer, strategy="bigrams")
    encoding = pairs("iltr WWi", return_offset_mapping=True)
    assert encoding.num_text_patches == 5
    assert encoding.offset_mapping[:5] == ((0, 2), (2, 4), (5, 7), (5, 7), (7, 8))
    assert (encoding.columns_XP[16:32] == pairs("tr").columns_XP[:16]).mean() > 0.98
    assert (encoding.columns_XP[64:80] == pairs("i").columns_XP[:16]).mean() > 0.98
    spaced = change(pairs, space_patch=True)("iltr WWi")
    assert spaced.num_text_patches == 6
    assert (spaced.patches[2] == 255).mean() > 0.98


def test_the_second_character_is_right_of_the_first_and_is_drawn_separately(renderer, change):
    pairs = change(renderer, strategy="bigrams")
    column = renderer.engine.lines(["f"], is_words=True).widths_N[0]
    apart = np.full((16, 16), 255, np.uint8)
    for start, letter in ((0, "f"), (int(column), "i")):
        alone = np.full((16, 16), 255, np.uint8)
        alone[start:] = pairs(letter).columns_XP[: 16 - start]
        apart = np.minimum(apart, alone)
    assert (np.abs(pairs("fi").columns_XP[:16].astype(int) - apart) < 40).all()


def test_bigrams_of_a_list_of_words_have_the_starts_of_words(renderer, change):
    pairs = change(renderer, strategy="bigrams")
    words = ["ilt", "rf", "itlti"]
    encoding = pairs(words, return_offset_mapping=True)
    assert encoding.word_starts == (0, 2, 3, 6)
    assert np.array_equal(encoding.columns_XP, pairs(" ".join(words)).columns_XP)
    assert [encoding.offset_mapping[start][0] for start in encoding.word_starts[:-1]] == [0, 4, 7]


def test_bigrams_end_with_the_canvas(renderer, change):
    short = change(renderer, strategy="bigrams", max_seq_length=6)
    encoding = short("iltritlfilttilti", return_offset_mapping=True, return_overflowing_patches=True)
    assert encoding.num_text_patches == 5
    assert encoding.overflowing_patches[0].offset_mapping[0] == (10, 12)
    assert short("").num_text_patches == 1
    listed = short(["iltritl", "fi", "ltti"], return_offset_mapping=True, return_overflowing_patches=True)
    assert listed.word_starts == (0, 4, 5)
    assert listed.overflowing_patches[0].offset_mapping[0] == (11, 13)


def test_bigrams_from_right_to_left_are_laid_out_so(fonts, has_pango):
    font = str(fonts / "PanScriptMerged-Regular.ttf")
    pairs = Renderer(RendererConfig(engine="pango", font_file=font, strategy="bigrams"))
    encoding = pairs("אבגדה וז", return_offset_mapping=True)
    assert encoding.offset_mapping[:4] == ((6, 8), (4, 5), (2, 4), (0, 2))
    listed = pairs(["אבגדה", "וז"], return_offset_mapping=True)
    assert listed.offset_mapping[:4] == ((4, 5), (2, 4), (0, 2), (6, 8))
    assert listed.word_starts == (0, 3, 4)
