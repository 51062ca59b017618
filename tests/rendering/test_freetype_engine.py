"""The FreeType engine against PyGame's own renderer: equal pixels."""

import hashlib
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.errors import DataError
from pretrainkit.rendering import Renderer, RendererConfig
from pretrainkit.rendering.glyph_atlas import BASELINE, GlyphAtlas

pytest.importorskip("freetype")

REFERENCE = json.loads((Path(__file__).parent / "pygame_reference.json").read_text(encoding="utf-8"))


def original(font: str, **fields: object) -> Renderer:
    return Renderer(RendererConfig(font_file=font, parity=True, on_missing="ignore", **fields))


def ink_rows(pixels: np.ndarray) -> tuple[int, int]:
    """First and last row with ink left of the first patch's end."""
    rows = np.flatnonzero((pixels[:, :16] < 255).any(axis=1))
    return int(rows[0]), int(rows[-1])


def disagreements(renderer: Renderer, entries: list) -> list:
    found = []
    for text, places, digest in entries:
        given_text = tuple(text["pair"]) if isinstance(text, dict) else text
        encoding = renderer(given_text)
        mine = hashlib.sha256(encoding.pixel_values.tobytes()).hexdigest()[:32]
        where = list(encoding.word_starts) if isinstance(text, list) else list(encoding.sep_patches)
        if mine != digest or where != places:
            found.append(text)
    return found


def test_every_pixel_is_pygames_in_a_latin_font(latin_font):
    known = REFERENCE.get(hashlib.sha256(Path(latin_font).read_bytes()).hexdigest())
    if known is None:
        pytest.skip("this Pillow brings another font than the references were made with")
    assert disagreements(original(latin_font), known["entries"]) == []


@pytest.mark.parametrize("name", ["NotoSans-Regular.otf", "PanScriptMerged-Regular.ttf"])
def test_every_pixel_is_pygames_in_many_scripts(fonts, name):
    known = next(font for font in REFERENCE.values() if font["name"] == name)
    assert disagreements(original(str(fonts / name)), known["entries"]) == []


def test_published_widths_of_noto_sans(noto):
    widths = {"a": 7, "a ": 10, " a": 10, " ": 3, "j": 4, "ii": 5, "fi": 8, "AV": 17, "office": 34, "": 0}
    assert dict(zip(widths, original(noto).widths(list(widths)).tolist(), strict=True)) == widths


def test_published_patch_counts_of_noto_sans(noto):
    renderer = original(noto)
    assert renderer("My cat loves oatmeal.").num_text_patches == 9
    assert renderer(["My", "cat", "loves", "oatmeal", "."]).word_starts == (0, 2, 4, 7, 11, 12)
    assert renderer("x" * 700).num_text_patches == 307
    assert renderer("word " * 1000).num_text_patches == 528


def test_running_text_is_centred_by_its_ink_and_words_are_on_a_baseline_as_in_the_original(noto):
    renderer = original(noto)
    assert ink_rows(renderer("xxx").pixel_values) == (4, 11)
    assert ink_rows(renderer(["xxx"]).pixel_values)[1] == 10
    assert np.flatnonzero((renderer("xxx").pixel_values[:, :16] < 255).any(axis=0))[0] == 2


def test_all_texts_are_on_the_same_baseline_by_default(noto):
    renderer = Renderer(RendererConfig(font_file=noto))
    assert {ink_rows(renderer(text).pixel_values)[1] for text in ("xxx", "Axx", "H")} == {10}
    assert ink_rows(renderer(["xxx"]).pixel_values)[1] == 10


def test_newlines_are_spaces_by_default_and_boxes_in_the_original(noto):
    fixed = Renderer(RendererConfig(font_file=noto))
    assert np.array_equal(fixed.columns("a\nb"), fixed.columns("a b"))
    assert not np.array_equal(original(noto).columns("a\nb"), original(noto).columns("a b"))


def test_the_second_text_of_a_pair_begins_two_columns_after_the_separator(noto):
    encoding = original(noto)(("first", "l"))
    ink = np.flatnonzero((encoding.pixel_values < 255).any(axis=0))
    separator = encoding.sep_patches[0]
    assert ink[ink >= 16 * separator + 16][0] == 16 * separator + 18


def test_characters_without_a_picture_are_not_drawn_but_in_the_original(latin_font):
    fixed = Renderer(RendererConfig(font_file=latin_font, on_missing="error"))
    assert np.array_equal(fixed.columns("a\u200d\ufe0fb\ufeff"), fixed.columns("ab"))
    assert original(latin_font).missing("a\ufe0f") == ["\ufe0f"]


def test_fallback_fonts_have_the_characters_that_the_main_font_lacks(fonts, noto):
    hebrew = str(fonts / "NotoSerifHebrew-Regular.otf")
    renderer = Renderer(RendererConfig(font_file=noto, fallback_fonts=(hebrew,)))
    alone = Renderer(RendererConfig(font_file=hebrew))
    assert renderer.missing("aש") == []
    assert np.array_equal(renderer.columns("שלום"), alone.columns("שלום"))


def test_colours_are_the_requested_ones(latin_font):
    renderer = Renderer(RendererConfig(font_file=latin_font, font_color="#0000ff", background_color="yellow", rgb=True))
    pixels = renderer("HI").pixel_values
    assert pixels.shape == (16, 8464, 3)
    assert pixels[0, 0].tolist() == [255, 255, 0]
    assert pixels[0, -1].tolist() == [255, 255, 0]
    end = renderer("HI").num_text_patches * 16
    assert (pixels[:, end : end + 16] == [0, 0, 255]).all()


def test_a_file_that_is_not_a_font_is_refused(tmp_path):
    path = tmp_path / "no.ttf"
    path.write_bytes(b"no font")
    with pytest.raises(DataError, match="cannot be used"):
        Renderer(RendererConfig(font_file=str(path))).columns("a")
    with pytest.raises(DataError, match="is not a file"):
        Renderer(RendererConfig(font_file=str(tmp_path / "absent.ttf"))).columns("a")


GLYPHS = st.lists(st.tuples(st.integers(-6, 40), st.integers(1, 9), st.integers(0, 255)), min_size=1, max_size=12)


@settings(max_examples=80)
@given(glyphs=GLYPHS, seed=st.integers(0, 999))
def test_glyphs_put_onto_a_line_at_once_are_as_if_drawn_one_after_another(glyphs, seed):
    rng, atlas, num_columns, P = np.random.default_rng(seed), GlyphAtlas(), 38, 16
    slots, expected = [], np.zeros((num_columns, P), int)
    for column, width, level in glyphs:
        bitmap = rng.integers(0, level + 1, (5, width)).astype(np.uint8)
        slots.append(atlas.add(bitmap, 0, 4))
        for x in range(width):
            if 0 <= column + x < num_columns:
                below, above = expected[column + x, 6:11], bitmap[:, x].astype(int)
                expected[column + x, 6:11] = below + above - below * above // 255
    line = np.empty((num_columns, P), np.uint8)
    columns = np.array([column for column, _, _ in glyphs], np.int64)
    atlas.paint(line, np.array(slots, np.int32), columns, 10)
    assert np.array_equal(line, expected)


@settings(max_examples=80)
@given(glyphs=GLYPHS, seed=st.integers(0, 999), num_layers=st.integers(1, 3))
def test_glyphs_of_a_layer_add_up_and_layers_cover_each_other(glyphs, seed, num_layers):
    rng, atlas, num_columns, P = np.random.default_rng(seed), GlyphAtlas(), 38, 16
    layers = np.sort(rng.integers(0, num_layers, len(glyphs))).astype(np.int32)
    slots, coverage = [], np.zeros((num_layers, num_columns, P), int)
    for (column, width, level), layer in zip(glyphs, layers, strict=True):
        bitmap = rng.integers(0, level + 1, (5, width)).astype(np.uint8)
        slots.append(atlas.add(bitmap, 0, 4))
        for x in range(width):
            if 0 <= column + x < num_columns:
                coverage[layer, column + x, 6:11] += bitmap[:, x]
    expected = np.zeros((num_columns, P), int)
    for above in np.minimum(coverage, 255):
        expected = above + np.rint(expected * (255 - above) / 255).astype(int)
    line = np.empty((num_columns, P), np.uint8)
    columns = np.array([column for column, _, _ in glyphs], np.int64)
    atlas.paint(line, np.array(slots, np.int32), columns, 10, layers_G=layers)
    assert np.array_equal(line, expected)


def test_the_store_keeps_glyphs_near_the_baseline_and_grows(latin_font):
    atlas = GlyphAtlas()
    slots = [atlas.add(np.full((2, 3), value % 256, np.uint8), 1, 1) for value in range(1, 700)]
    line = np.empty((3, 4), np.uint8)
    atlas.paint(line, np.array(slots[-1:], np.int32), np.array([0]), 2)
    assert line.tolist() == [[0, 699 % 256, 699 % 256, 0]] * 3
    high = atlas.add(np.full((200, 1), 7, np.uint8), 0, 150)
    atlas.paint(line, np.array([high], np.int32), np.array([0]), 2)
    assert line[0].tolist() == [7] * 4
    assert BASELINE < 150


def test_combining_marks_are_reported_once(latin_font):
    renderer = Renderer(RendererConfig(font_file=latin_font))
    with pytest.warns(UserWarning, match=r"combining marks such as U\+0308, which the engine freetype draws beside"):
        renderer("ko\u0308ln")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        renderer("e\u0308")
