"""Text from right to left, and mixed: where words begin, and which characters are in which patch."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pretrainkit.rendering import Renderer, RendererConfig
from pretrainkit.rendering.offsets import original_backward_spans, original_spans

ANY_FIXTURE = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = st.lists(st.text("abcxyzfiAVW", min_size=1, max_size=9), min_size=1, max_size=8)


@pytest.fixture
def hebrew(fonts, noto, has_pango):
    """Latin and Hebrew with Pango; `parity` on request."""

    def made(**settings):
        fallbacks = (str(fonts / "NotoSerifHebrew-Regular.otf"),)
        return Renderer(RendererConfig(engine="pango", font_file=noto, fallback_fonts=fallbacks, **settings))

    return made


@ANY_FIXTURE
@given(words=WORDS)
def test_words_from_the_right_are_those_from_the_left_in_mirrored_patches(renderer, words):
    left, right = renderer(words), renderer(words, rtl=True)
    end = left.num_text_patches
    assert right.num_text_patches == end == right.word_starts[-1]
    assert right.word_starts[:-1] == tuple(end - after for after in left.word_starts[1:])
    for index, word in enumerate(words):
        first, stop = right.word_starts[index], end - left.word_starts[index]
        drawn = right.columns_XP[first * 16 : stop * 16]
        alone = renderer([word]).columns_XP
        num_inked = (alone[:-16] < 255).any(1).sum()
        assert (drawn < 255).any(1).sum() == pytest.approx(num_inked, abs=2)  # the next word's ink may reach over
    ink = np.flatnonzero((right.columns_XP[: end * 16] < 255).any(1))
    assert ink[0] >= 1
    assert ink[-1] < end * 16 - 1


def test_words_from_the_right_have_their_characters_in_their_patches(renderer):
    words = ["some", "words", "from", "there"]
    encoding = renderer(words, rtl=True, return_offset_mapping=True)
    joined = " ".join(words)
    assert len(encoding.offset_mapping) == 529
    stops = [encoding.num_text_patches, *encoding.word_starts[: len(words) - 1]]
    for word, first, stop in zip(words, encoding.word_starts, stops, strict=False):
        begin = joined.index(word)
        spans = [span for span in encoding.offset_mapping[first:stop] if span[1]]
        assert min(one for one, _ in spans) == begin
        assert max(after for _, after in spans) in (begin + len(word), begin + len(word) + 1)


def test_the_original_lays_words_and_running_text_out_from_the_left_despite_rtl(renderer, change):
    original = change(renderer, parity=True)
    for text in (["some", "words"], "some words"):
        assert np.array_equal(original(text, rtl=True).columns_XP, original(text).columns_XP)
        told, untold = (original(text, rtl=rtl, return_offset_mapping=True).offset_mapping for rtl in (True, None))
        assert told == untold
    assert not np.array_equal(renderer(["some", "words"], rtl=True).columns_XP, renderer(["some", "words"]).columns_XP)


def test_words_from_the_right_that_do_not_fit_begin_the_next_canvas(renderer, change):
    words = [f"word{number}" for number in range(30)]
    short = change(renderer, max_seq_length=20)
    encoding = short(words, rtl=True, return_offset_mapping=True, return_overflowing_patches=True)
    firsts = [
        max(first for first, after in canvas.offset_mapping if after)
        for canvas in (encoding, *encoding.overflowing_patches)
    ]
    assert len(firsts) > 3
    assert all(one < other for one, other in pairwise(firsts))
    assert firsts[-1] >= " ".join(words).index("word29")


@pytest.mark.parametrize("parity", [False, True])
def test_a_mixed_text_is_in_its_patches_as_it_is_read(hebrew, parity):
    text = "The word שלום means peace, עולם the world."
    encoding = hebrew(parity=parity)(text, return_offset_mapping=True)
    spans = [span for span in dict.fromkeys(encoding.offset_mapping) if span[1]]
    covered = sorted(index for first, after in spans for index in range(first, after))
    assert set(covered) == set(range(len(text)))
    assert spans[0][0] == 0
    begin = text.index("שלום")
    firsts = [first for first, after in spans if begin <= first and after <= begin + 4]
    assert parity or firsts == sorted(firsts, reverse=True)


def test_a_pair_from_the_right_has_spans_counted_from_the_right_in_the_original(hebrew):
    pair = "שלום עולם טוב", "אבג דהו זחט יכל"
    encoding = hebrew(parity=True)(pair, return_offset_mapping=True)
    separator, end = encoding.sep_patches
    for text, spans in (
        (pair[0], encoding.offset_mapping[:separator]),
        (pair[1], encoding.offset_mapping[separator + 1 : end]),
    ):
        shown = [span for span in spans if span != (-1, -1)]
        assert shown[0][0] == len(text)
        assert shown[-1][1] == 0
        assert all(larger >= smaller for larger, smaller in shown)
        assert all(before[1] == after[0] for before, after in pairwise(shown))
    assert encoding.offset_mapping[separator] == (0, 0)
    fixed = hebrew()(pair, return_offset_mapping=True)
    assert fixed.sep_patches == encoding.sep_patches
    assert all(first <= after for first, after in fixed.offset_mapping)


def test_a_pair_of_which_one_text_is_from_the_left_is_laid_out_from_the_left(hebrew):
    pair = "שלום עולם", "peace"
    original = hebrew(parity=True)
    assert np.array_equal(original(pair).columns_XP, original(pair, rtl=False).columns_XP)
    assert original(pair, return_offset_mapping=True).offset_mapping[0][0] != len(pair[0])
    forced = original(pair, rtl=True, return_offset_mapping=True)
    assert forced.offset_mapping[0][0] == len(pair[0])


@pytest.mark.parametrize("parity", [False, True])
def test_the_second_text_of_a_pair_from_the_right_is_cut_at_its_end(hebrew, parity):
    encoding = hebrew(parity=parity, max_seq_length=24)(("שלום", "אבג דהו " * 40), return_offset_mapping=True)
    separator = encoding.sep_patches[0]
    spans = [span for span in encoding.offset_mapping[separator + 1 :] if span not in ((0, 0), (-1, -1))]
    assert min(min(span) for span in spans) == 0
    assert max(max(span) for span in spans) < 200
    assert encoding.num_text_patches == 23


@given(widths=st.lists(st.integers(2, 20), min_size=1, max_size=40), start=st.integers(2, 18))
def test_backward_spans_mirror_forward_ones(widths, start):
    positions = np.cumsum([0, *widths[:-1]]).astype(float)
    given_place = (start, sum(widths) + 2, start // 16, 16, 528 * 16)
    forward = original_spans(positions, *given_place)
    backward = original_backward_spans(positions[::-1], *given_place)
    num = len(widths)
    assert [(num - first, max(num - after, 0)) for first, after in forward if after >= 0] == [
        span for span in backward if span != (-1, -1)
    ]
