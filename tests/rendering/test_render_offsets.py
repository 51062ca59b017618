"""Characters to patches, and canvases that continue with the rest."""

import hashlib
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pretrainkit.rendering import Renderer, RendererConfig
from pretrainkit.rendering.offsets import patch_spans

REFERENCE = json.loads((Path(__file__).parent / "pango_reference.json").read_text(encoding="utf-8"))
"""Results of the original; see make_pango_reference.py."""
ANY_FIXTURE = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXT = st.text("abcdefgh ijlmW.", min_size=1, max_size=300)


def shown(encoding, which=0):
    """Spans of one text's patches."""
    pairs = zip(encoding.offset_mapping, encoding.text_ids, strict=True)
    return [span for span, text in pairs if text == which]


@ANY_FIXTURE
@given(text=TEXT)
def test_every_character_is_in_one_patch_and_in_order(renderer, text):
    encoding = renderer(text, return_offset_mapping=True)
    assert len(encoding.offset_mapping) == 529
    spans = shown(encoding)
    assert len(spans) == encoding.num_text_patches
    once = list(dict.fromkeys(span for span in spans if span[1]))
    assert [once[0][0], once[-1][1]] == [0, len(text)]
    assert all(before[1] == after[0] for before, after in pairwise(once))
    assert set(encoding.offset_mapping[encoding.num_text_patches :]) == {(0, 0)}


def test_a_character_that_crosses_a_border_belongs_to_the_later_patch():
    edges = np.array([[0, 10], [10, 20], [20, 30], [30, 34.0]])
    assert patch_spans(edges, 2, 48, 0, 16) == [(0, 1), (1, 3), (3, 4)]
    assert patch_spans(edges, 0, 48, 0, 16) == [(0, 1), (1, 3), (3, 4)]
    backward = np.array([[34, 24], [24, 14], [14, 4], [4, 0.0]])
    assert patch_spans(backward, 0, 48, 0, 16) == [(1, 4), (0, 1), (0, 1)]


def test_text_past_the_canvas_is_in_no_span():
    edges = np.array([[0, 16], [16, 32], [32, 48.0]])
    assert patch_spans(edges, 0, 32, 0, 16) == [(0, 1), (1, 2)]


def test_a_wide_character_fills_its_patches():
    assert patch_spans(np.array([[0, 40.0]]), 0, 48, 0, 16) == [(0, 0), (0, 0), (0, 1)]
    assert patch_spans(np.array([[0, 5], [5, 40.0]]), 0, 48, 0, 16) == [(0, 1), (0, 1), (1, 2)]


def test_offsets_of_words_count_as_if_joined_by_spaces(renderer):
    words = ["Some", "words", "standing", "apart"]
    joined = " ".join(words)
    encoding = renderer(words, return_offset_mapping=True)
    for word, start in zip(words, encoding.word_starts, strict=False):
        assert encoding.offset_mapping[start][0] == joined.index(word)


def test_a_pair_maps_each_text_from_its_own_beginning(renderer):
    encoding = renderer(("The first text.", "And the second one."), return_offset_mapping=True)
    first = encoding.sep_patches[0]
    assert encoding.offset_mapping[first] == (0, 0)
    assert encoding.offset_mapping.index((0, 0)) == first
    assert encoding.offset_mapping[0][0] == encoding.offset_mapping[first + 1][0] == 0
    assert shown(encoding, 1)[-1][1] == len("And the second one.")
    assert encoding.text_ids[first] == -1


def test_the_originals_mapping_is_reproduced(noto, has_pango):
    renderer = Renderer(RendererConfig(engine="pango", font_file=noto, parity=True))
    encoding = renderer(("What does my cat love?", "Oatmeal, fish and sleep."), return_offset_mapping=True)
    assert encoding.sep_patches == (10, 21)
    assert encoding.offset_mapping[:4] == ((0, 1), (1, 3), (3, 6), (6, 8))
    assert encoding.offset_mapping[10:15] == ((0, 0), (0, 1), (1, 3), (3, 5), (5, 10))


@pytest.fixture
def original(latin_font, has_pango):
    """Renderer like the original's Pango, with canvases of a length."""
    if hashlib.sha256(Path(latin_font).read_bytes()).hexdigest() != REFERENCE["font_sha256"]:
        pytest.skip("this Pillow brings another font than the reference was made with")
    return lambda length: Renderer(
        RendererConfig(engine="pango", font_file=latin_font, parity=True, max_seq_length=length, on_missing="ignore")
    )


def test_offsets_and_windows_of_pairs_are_the_originals(original):
    renderers = {length: original(length) for length in (30, 40)}
    for case in REFERENCE["cases"]:
        length, stride, limit, rtl = case["settings"]
        pair, theirs = tuple(case["pair"]), [[tuple(span) for span in spans] for spans in case["maps"]]
        encoding = renderers[length](
            pair,
            return_offset_mapping=True,
            return_overflowing_patches=True,
            stride=stride,
            text_a_max_length=limit,
            rtl=rtl or None,
        )
        ours = [encoding, *encoding.overflowing_patches]
        assert [list(one.offset_mapping) for one in ours[: len(theirs)]] == theirs, case["pair"]
        assert [one.num_text_patches for one in ours[: len(theirs)]] == case["ends"]
        if len(ours) > len(theirs):  # the original leaves out the end of the text
            assert case["ends"][-1] == length - 1
            assert max(place for window in theirs for span in window for place in span) < len(pair[1])
        assert max(place for one in ours for span in one.offset_mapping for place in span) >= len(pair[1])


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_a_first_text_that_is_cut_gives_its_room_to_the_second(renderer, change, limit):
    pair = "a first text that is long", "the second"
    encoding = renderer(pair, text_a_max_length=limit, return_offset_mapping=True)
    assert encoding.sep_patches[0] <= limit
    assert shown(encoding, 1)[0][0] == 0
    kept = max(after for _, after in shown(encoding, 0))
    assert np.array_equal(encoding.columns_XP, renderer((pair[0][:kept], pair[1])).columns_XP)
    if kept < len(pair[0]):
        assert renderer((pair[0][: kept + 1], pair[1])).sep_patches[0] > limit
    original = change(renderer, parity=True)
    assert original(pair, text_a_max_length=limit).sep_patches == original(pair).sep_patches


@ANY_FIXTURE
@given(num_words=st.integers(1, 120), stride=st.integers(0, 6), as_pair=st.booleans())
@example(num_words=23, stride=0, as_pair=False)  # in this font, all but the white after the last word fits
def test_overflowing_canvases_show_the_whole_text(renderer, change, num_words, stride, as_pair):
    short = change(renderer, max_seq_length=24)
    text = " ".join(f"word{number}" for number in range(num_words))
    given_text = ("Why?", text) if as_pair else text
    encoding = short(given_text, return_offset_mapping=True, return_overflowing_patches=True, stride=stride)
    canvases = [encoding, *encoding.overflowing_patches]
    which = int(as_pair)
    spans = [shown(canvas, which) for canvas in canvases]
    begins = [min(first for first, after in found if after) for found in spans]
    ends = [max(after for _, after in found) for found in spans]
    assert begins[0] == 0
    assert ends[-1] == len(text)
    assert all(begin <= end for begin, end in zip(begins[1:], ends, strict=False))
    if not stride:
        assert begins[1:] == ends[:-1]
    if as_pair:
        first = encoding.sep_patches[0] * 16
        assert all(np.array_equal(canvas.columns_XP[:first], encoding.columns_XP[:first]) for canvas in canvases)
    for canvas, begin in zip(canvases, begins, strict=True):
        rest = ("Why?", text[begin:]) if as_pair else text[begin:]
        assert np.array_equal(canvas.columns_XP, short.columns(rest))


def test_words_that_do_not_fit_begin_the_next_canvas(renderer, change):
    words = [f"word{number}" for number in range(60)]
    encoding = change(renderer, max_seq_length=40)(words, return_offset_mapping=True, return_overflowing_patches=True)
    canvases = [encoding, *encoding.overflowing_patches]
    joined = " ".join(words)
    found = [joined[canvas.offset_mapping[0][0] :].split()[0] for canvas in canvases]
    assert found[0] == "word0"
    assert len(set(found)) == len(canvases) > 3


def test_a_stride_that_leaves_no_room_is_refused(renderer, change):
    short = change(renderer, max_seq_length=10)
    with pytest.raises(ValueError, match="stride below 9"):
        short("text " * 50, return_offset_mapping=True, return_overflowing_patches=True, stride=9)
    encoding = short("text " * 50, return_offset_mapping=True, return_overflowing_patches=True, stride=8)
    assert shown(encoding.overflowing_patches[-1])[-1][1] == len("text " * 50)


def test_overflow_needs_offsets(renderer):
    with pytest.raises(ValueError, match="return_offset_mapping"):
        renderer("text", return_overflowing_patches=True)
