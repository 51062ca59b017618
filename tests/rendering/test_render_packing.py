"""Documents to texts that fill canvases."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pretrainkit.rendering import Renderer, RendererConfig
from pretrainkit.rendering.packing import fill, fill_patches, longest_fitting, original_blocks, wikipedia_articles

ANY_FIXTURE = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ANY_FIXTURE
@given(words=st.lists(st.text("abcfijlmAVW.", min_size=1, max_size=12), max_size=200))
def test_nothing_is_lost_and_nothing_is_cut_off(renderer, change, words):
    short = change(renderer, max_seq_length=20)
    pieces = list(fill(short, " \n".join(words)))
    assert " ".join(pieces) == " ".join(words)
    for piece in pieces:
        assert short.width(piece) + 4 <= 19 * 16


@ANY_FIXTURE
@given(words=st.lists(st.text("abcfijlmAVW.", min_size=1, max_size=9), min_size=60, max_size=200))
def test_the_next_word_would_not_have_fitted(renderer, change, words):
    short = change(renderer, max_seq_length=20)
    pieces = list(fill(short, " ".join(words)))
    for piece, following in itertools.pairwise(pieces):
        assert short.width(f"{piece} {following.split()[0]}") + 4 > 19 * 16 - 3


def test_a_word_wider_than_the_canvas_is_cut_between_characters(renderer, change):
    short = change(renderer, max_seq_length=10)
    pieces = list(fill(short, "a " + "long" * 30 + " end"))
    assert "".join(pieces).replace(" ", "") == "a" + "long" * 30 + "end"
    assert all(short.width(piece) + 4 <= 9 * 16 for piece in pieces)
    assert list(fill(short, " \n ")) == []


def test_a_canvas_narrower_than_a_character_still_ends(renderer, change):
    tiny = change(renderer, max_seq_length=2, font_size=16)
    assert list(fill(tiny, "WWi W")) == ["W", "W", "i", "W"]


def test_pieces_of_long_text_leave_little_room(renderer):
    text = "The quick brown fox jumps over the lazy dog, again and again. " * 300
    counts = [renderer.num_text_patches(piece) for piece in fill(renderer, text)]
    assert min(counts[:-1]) >= 524
    assert max(counts) <= 528


def test_the_originals_blocks(renderer):
    lines = ["x" * 300, "y" * 300, "z" * 400, "w" * 3000, "end"]
    target, widths = 8432, renderer.widths(lines)
    blocks = list(original_blocks(renderer, lines))
    assert " ".join(blocks) == " ".join(lines)
    for block in blocks:
        inside = [widths[lines.index(line)] for line in block.split(" ")]
        assert len(inside) == 1 or np.sum(inside) < target
    assert list(original_blocks(renderer, lines[3:])) == ["", lines[3], "end"]
    assert renderer("").num_text_patches == 1


def test_articles_are_parted_by_three_blank_lines_and_titles_dropped():
    long = "a paragraph " * 10
    lines = [
        "First title",
        "text",
        "",
        "",
        "",
        "Second title",
        "",
        "more",
        "",
        "",
        "",
        long,
        "rest",
        "",
        "",
        "",
        "Alone",
    ]
    assert list(wikipedia_articles(lines)) == [["First title", "text"], ["more"], [long.strip(), "rest"], []]


def test_right_to_left_text_fills_canvases_too(fonts, has_pango):
    config = RendererConfig(engine="pango", font_file=str(fonts / "PanScriptMerged-Regular.ttf"))
    renderer, text = Renderer(config), "كل الناس يولدون أحرارا متساوين في الكرامة " * 100
    pieces = list(fill(renderer, text))
    assert " ".join(pieces) == text.strip()
    assert min(renderer.num_text_patches(piece) for piece in pieces[:-1]) >= 520
    assert all(renderer.width(piece) + 4 <= 528 * 16 for piece in pieces)


PATCH_STRATEGIES = pytest.mark.parametrize(
    "fields", [{"strategy": "words"}, {"strategy": "bigrams"}, {"strategy": "bigrams", "space_patch": True}], ids=str
)


@PATCH_STRATEGIES
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(words=st.lists(st.text("abcijlmAVWW.", min_size=1, max_size=9), min_size=1, max_size=60))
def test_words_and_bigrams_fill_canvases_without_a_loss(renderer, change, fields, words):
    """A canvas of 12 patches shows a piece wholly, and no other would have held its next word."""
    short, unbound = (change(renderer, max_seq_length=num, **fields) for num in (12, 1000))
    pieces = list(fill_patches(short, " \n".join(words)))
    assert "".join(pieces).replace(" ", "") == "".join(words)
    for piece, following in itertools.zip_longest(pieces, pieces[1:]):
        assert short.num_text_patches(piece) == unbound.num_text_patches(piece) <= 11
        is_cut_word = following is not None and " ".join([piece, following.split()[0]]) not in " ".join(words)
        if following is not None and not is_cut_word:
            assert unbound.num_text_patches(f"{piece} {following.split()[0]}") > 11


@PATCH_STRATEGIES
def test_long_text_is_measured_word_by_word(renderer, change, fields, monkeypatch):
    """Layout work grows with the text and not with its square."""
    measured = []
    short = change(renderer, max_seq_length=30, **fields)
    lines = type(short.engine).lines
    monkeypatch.setattr(
        type(short.engine), "lines", lambda self, texts, **how: measured.extend(texts) or lines(self, texts, **how)
    )
    words = [f"{left}{right}" for left in "abcdefghij" for right in "klmnopqrst"] * 20
    assert " ".join(fill_patches(short, " ".join(words))) == " ".join(words)
    assert sum(map(len, measured)) < 2 * sum(map(len, words))


@PATCH_STRATEGIES
def test_a_word_of_many_canvases_is_cut_without_measuring_all_of_it(renderer, change, fields):
    short, word = change(renderer, max_seq_length=20, **fields), "without" * 100
    pieces = list(fill_patches(short, f"a {word} b"))
    assert "".join(pieces[1:-1]) == word
    assert all(short.num_text_patches(piece) <= 19 for piece in pieces)
    assert all(change(short, max_seq_length=99).num_text_patches(piece + "www") > 19 for piece in pieces[1:-2])


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=80), room=st.integers(0, 400), guess=st.integers(1, 99))
def test_the_most_characters_that_fit(sizes, room, guess):
    """It holds for any guess, however unequal the characters are."""
    word = "".join(map(chr, sizes))
    first = len(word) // 3
    tries = []

    def measure(text):
        tries.append(len(text))
        return sum(map(ord, text))

    num = longest_fitting(measure, word, first, room, guess)
    reach = np.cumsum(sizes[first:])
    assert num == max(1, int(np.searchsorted(reach, room, side="right")))
    assert len(tries) < 20
