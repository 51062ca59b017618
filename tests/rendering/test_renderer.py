"""Laws of every renderer, whatever draws."""

import pickle
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from multiprocessing import get_context

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.rendering import Renderer, RendererConfig, is_rtl
from support.remedies import followed

WORDS = st.lists(st.text("abcdefghij fiAVWjlm.", max_size=40), min_size=1, max_size=30)
ANY_FIXTURE = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_published_canvas(renderer):
    config = renderer.config
    assert (config.pixels_per_patch, config.max_seq_length, config.dpi) == (16, 529, 120)
    assert (config.font_size, config.pad_size) == (8, 3)
    assert config.font_pixels == pytest.approx(13.3333, abs=1e-4)
    pixels = renderer("text").pixel_values
    assert pixels.shape == (16, 8464)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous


@pytest.mark.parametrize("text", ["", " "])
def test_a_blank_text_is_one_white_patch_and_the_black_one(renderer, text):
    encoding = renderer(text)
    assert encoding.num_text_patches == 1
    pixels = encoding.pixel_values
    assert (pixels[:, 16:32] == 0).all()
    assert (pixels[:, :16] == 255).all()
    assert (pixels[:, 32:] == 255).all()


@ANY_FIXTURE
@given(text=st.text("abc xyzfiAVW.", max_size=1500))
def test_the_number_of_text_patches_is_the_index_of_the_end_patch(renderer, text):
    encoding = renderer(text)
    pixels = encoding.pixel_values
    end = encoding.num_text_patches
    assert 1 <= end <= 528
    assert (pixels[:, end * 16 : end * 16 + 16] == 0).all()
    assert (pixels[:, end * 16 + 16 :] == 255).all()
    margin = 2 if renderer.config.engine == "freetype" else 1  # by Pango's measure, ink may reach out of its text
    assert (pixels[:, :margin] == 255).all()
    assert encoding.sep_patches == (end,)
    assert encoding.attention_mask.sum() == end + 1
    assert encoding.attention_mask.dtype == np.float32
    assert encoding.attention_mask.shape == (529,)
    assert renderer.num_text_patches(text) == end
    if end < 528:
        assert (pixels[:, end * 16 - margin : end * 16] == 255).all()


@ANY_FIXTURE
@given(words=WORDS)
def test_words_begin_patches_one_after_another(renderer, words):
    encoding = renderer(words)
    starts = encoding.word_starts
    assert starts is not None
    assert len(starts) <= len(words) + 1
    assert starts[0] == 0
    assert starts[-1] == encoding.num_text_patches
    assert all(one < other for one, other in pairwise(starts))
    if starts[-1] < 528:
        assert len(starts) == len(words) + 1


@ANY_FIXTURE
@given(words=st.lists(st.text("abcxyzfiAVW", min_size=1, max_size=9), min_size=2, max_size=6))
def test_a_word_is_drawn_alike_at_any_position(renderer, words):
    encoding = renderer(["first", *words])
    starts = encoding.word_starts
    index = len(words) // 2
    begin, end = starts[1 + index] * 16, starts[2 + index] * 16
    other = renderer(["something", words[index], "else"])
    again = other.columns_XP[other.word_starts[1] * 16 : other.word_starts[2] * 16]
    shared = min(end - begin, len(again)) - 2  # the ink of the word that follows may reach over
    assert np.array_equal(encoding.columns_XP[begin : begin + shared], again[:shared])


def test_too_many_words_end_with_the_word_that_reached_the_last_patch(renderer):
    encoding = renderer(["some"] * 900)
    assert encoding.num_text_patches == 528
    assert encoding.word_starts[-1] == 528
    assert len(encoding.word_starts) < 900


def test_a_pair_has_two_black_patches_and_two_margins(renderer):
    encoding = renderer(("first text", "l"))
    first, end = encoding.sep_patches
    pixels = encoding.pixel_values
    assert (pixels[:, first * 16 : first * 16 + 16] == 0).all()
    assert (pixels[:, end * 16 : end * 16 + 16] == 0).all()
    assert end == encoding.num_text_patches
    ink = np.flatnonzero((pixels[:, first * 16 + 16 : end * 16] < 255).any(axis=0))
    assert ink[0] >= 2
    assert np.array_equal(pixels[:, : first * 16], renderer("first text").pixel_values[:, : first * 16])


def test_a_pair_whose_first_text_fills_the_canvas_still_ends(renderer):
    assert renderer(("word " * 1000, "second")).num_text_patches == 528


@pytest.mark.parametrize("text", [3, None, b"bytes", {"a": 1}, ["a", 1], ("a", None)])
def test_other_types_are_refused(renderer, text):
    with pytest.raises(TypeError, match="give"):
        renderer(text)


@pytest.mark.parametrize("text", [("a",), ("a", "b", "c"), []])
def test_other_lengths_are_refused(renderer, text):
    with pytest.raises(ValueError, match="give"):
        renderer(text)


def test_three_colours_of_black_text_are_the_grey_ones(renderer, change):
    for text in ("Some text", ["Some", "words"], ("a", "pair")):
        grey, colors = renderer(text).pixel_values, change(renderer, rgb=True)(text).pixel_values
        assert np.array_equal(colors, np.repeat(grey[:, :, None], 3, axis=2))


def test_patches_are_the_canvas_cut_up(renderer, change):
    for rgb in (False, True):
        encoding = change(renderer, rgb=rgb)("Some text, cut up")
        pixels, patches = encoding.pixel_values, encoding.patches
        assert len(patches) == encoding.num_text_patches + 1
        for index, patch in enumerate(patches):
            assert np.array_equal(patch, pixels[:, index * 16 : index * 16 + 16])


def test_the_square_holds_the_patches_in_rows(renderer):
    encoding = renderer("word " * 100)
    square = encoding.square()
    assert square.shape == (368, 368)
    assert np.array_equal(square[16:32, 32:48], encoding.pixel_values[:, 25 * 16 : 26 * 16])


def test_characters_that_no_font_has_are_reported_once_and_by_name(renderer, change):
    warning = change(renderer, on_missing="warn")
    with pytest.warns(UserWarning, match=r"U\+0436"):
        warning("a\u0436b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warning("a\u0436b")
        warning("plain text")
    with pytest.raises(DataError, match=r"U\+0436.*\n.*fallback_fonts") as error:
        change(renderer, on_missing="error")("a\u0436b")
    advised = followed(error.value, "rendering/drawer.py: no font has … / add a font with them to fallback_fonts, or")
    with pytest.warns(UserWarning, match=r"U\+0436"):
        change(renderer, **dict([advised.rpartition(" ")[2].split("=")]))("a\u0436b")
    assert renderer.missing("a\u0436\u4e00b\u0436") == ["\u0436", "\u4e00"]


@pytest.mark.parametrize("text", ["a\ud800b", "x \udfff", "\udc00\ud800"])
def test_half_a_surrogate_pair_is_reported_like_a_character_that_no_font_has(renderer, change, text):
    halves = [character for character in text if "\ud800" <= character <= "\udfff"]
    assert sorted(renderer.missing(text)) == sorted(halves)
    with pytest.warns(UserWarning, match=rf"U\+{ord(halves[0]):04X}"):
        encoding = change(renderer, on_missing="warn")(text, return_offset_mapping=True)
    assert max(after for _, after in encoding.offset_mapping) == len(text)
    with pytest.raises(DataError, match=rf"U\+{ord(halves[0]):04X}"):
        change(renderer, on_missing="error")([text, "word"])
    without = "".join(character for character in text if character not in halves)
    assert renderer.width(text) > renderer.width(without)


def test_a_zero_character_is_not_taken_for_another(renderer):
    assert renderer.missing("a\0b") == ["\0"]


def test_a_pickled_renderer_draws_the_same(renderer):
    copy = pickle.loads(pickle.dumps(renderer))
    assert copy.config == renderer.config
    assert np.array_equal(copy.columns("Some text"), renderer.columns("Some text"))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_draw_the_same(renderer, method):
    texts = ["Some text", "another", "and a third"]
    mine = [renderer.columns(text) for text in texts]
    with ProcessPoolExecutor(1, mp_context=get_context(method)) as pool:
        theirs = list(pool.map(renderer.columns, texts))
    assert all(np.array_equal(one, other) for one, other in zip(mine, theirs, strict=True))


def test_threads_draw_the_same(renderer, change):
    texts = [f"text {number} {chr(65 + number % 26)}{chr(97 + number % 23)} end" for number in range(60)]
    expected = [change(renderer).columns(text) for text in texts]
    shared, barrier = change(renderer), threading.Barrier(4)

    def draw(_: int) -> list[np.ndarray]:
        barrier.wait()
        return [shared.columns(text) for text in texts]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(draw, range(4)):
            assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("אבג", True),
        ("aבג", True),
        ("אbc", False),
        ("123 !", False),
        ("", False),
        ("سلام", True),
        ("x (שלום) עולם", True),
    ],
)
def test_is_rtl(text, expected):
    assert is_rtl(text) is expected


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60) | st.lists(st.text(max_size=8), min_size=1, max_size=8))
def test_any_text_can_be_rendered(renderer, text):
    encoding = renderer(text, return_offset_mapping=True)
    joined = text if isinstance(text, str) else " ".join(text)
    assert 1 <= encoding.num_text_patches <= 528
    assert (encoding.patches[-1] == 0).all()
    assert all(0 <= first <= after <= len(joined) for first, after in encoding.offset_mapping)


def test_blanks_of_every_kind_are_spaces(renderer):
    for blank in "\t\n\r\v\f\x85\u2028\u2029":
        assert np.array_equal(renderer.columns(f"a{blank}b"), renderer.columns("a b"))
        assert np.array_equal(renderer.columns([f"a{blank}b", "c"]), renderer.columns(["a b", "c"]))


@pytest.mark.parametrize(("patch", "size"), [(8, 4), (16, 8), (32, 16), (64, 32)])
def test_canvases_of_other_heights_hold_the_same_picture_larger_or_smaller(renderer, change, patch, size):
    other = change(renderer, pixels_per_patch=patch, font_size=size, pad_size=3 * patch // 16)
    pixels = other("Some text to draw").pixel_values
    assert pixels.shape == (patch, patch * 529)
    rows = np.flatnonzero((pixels[:, :patch] < 255).any(axis=1)) / patch
    usual = np.flatnonzero((renderer("Some text to draw").pixel_values[:, :16] < 255).any(axis=1)) / 16
    assert abs(rows[0] - usual[0]) < 0.15
    assert abs(rows[-1] - usual[-1]) < 0.15


def test_settings_that_cannot_work_are_refused(latin_font):
    with pytest.raises(ValueError, match="font_size of about"):
        RendererConfig(font_file=latin_font, font_size=80)
    with pytest.raises(ConfigError, match="colour 'blak' is unknown"):
        Renderer(RendererConfig(font_file=latin_font, font_color="blak"))
    with pytest.raises(ValueError, match="pad_size 9"):
        RendererConfig(font_file=latin_font, pad_size=9)
    with pytest.raises(ValueError, match="dpy"):
        RendererConfig(font_file=latin_font, dpy=3)


@pytest.mark.parametrize("engine", ["freetype", "pango"])
def test_ignorable_characters_are_not_drawn_though_a_font_has_pictures_of_them(engine, drawn_font, tmp_path, request):
    """Against the property of Unicode's DerivedCoreProperties; Pango leaves them out by HarfBuzz's list."""
    if engine == "pango":
        request.getfixturevalue("has_pango")
    codes = [0xAD, 0x34F, 0x61C, 0x17B4, 0x180B, 0x180E, *range(0x200B, 0x2010), *range(0x202A, 0x202F)]
    codes += [*range(0x2060, 0x2065), *range(0x2066, 0x2070), 0xFE00, 0xFE0F, 0xFEFF, 0x1D173, 0xE0001, 0xE007F]
    font = drawn_font(tmp_path / "all.ttf", "All", "ab " + "".join(map(chr, codes)))
    renderer = Renderer(RendererConfig(engine=engine, font_file=font, on_missing="error"))
    plain = renderer.columns("ab ab")
    shown = [hex(code) for code in codes if not np.array_equal(renderer.columns(f"ab{chr(code)} ab"), plain)]
    assert shown == []
    if engine == "freetype":
        original = Renderer(RendererConfig(font_file=font, parity=True))
        assert not np.array_equal(original.columns("ab\u202e ab"), original.columns("ab ab"))
