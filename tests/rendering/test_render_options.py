"""Options of a renderer beyond the original's: control characters, whole letters, fallback fonts that fit."""

import struct
from pathlib import Path

import numpy as np
import pytest

from pretrainkit.errors import DataError
from pretrainkit.rendering import RendererConfig, load_renderer, save_renderer
from pretrainkit.rendering.folder import open_renderer
from pretrainkit.rendering.fonts import drawn_faces
from pretrainkit.rendering.identity import settings
from pretrainkit.rendering.packing import fill


def test_control_characters_are_drawn_as_their_pictures(renderer, change):
    shown = change(renderer, show_controls=True)
    for text, pictures in (("a\nb\tc", "a\u240ab\u2409c"), ("\x01\x7f", "\u2401\u2421")):
        assert np.array_equal(shown.columns(text), renderer.columns(pictures))
        assert np.array_equal(shown.columns([text, "x"]), renderer.columns([pictures, "x"]))
        assert shown.missing(text) == renderer.missing(pictures) != []
        assert shown.width(text) == renderer.width(pictures)
    assert np.array_equal(shown.columns("no such thing"), renderer.columns("no such thing"))
    assert len(shown("a\nb", return_offset_mapping=True).offset_mapping) == 529


def test_pieces_of_text_with_pictures_of_control_characters_fit_their_canvas(renderer, change):
    shown = change(renderer, show_controls=True, max_seq_length=12)
    words = [f"w{number}\x01\x02" for number in range(40)]
    pieces = list(fill(shown, " ".join(words)))
    assert " ".join(pieces).split() == words
    assert all(4 + shown.width(piece) <= 11 * 16 for piece in pieces)


@pytest.mark.parametrize("words", [False, True])
def test_only_whole_letters_are_drawn_if_requested(renderer, change, words):
    text = "mwmwmw" * 20
    cut, whole = (change(renderer, max_seq_length=7, cut_letters=is_cut) for is_cut in (True, False))
    given = ["a", text] if words else text
    encoding = whole(given, return_offset_mapping=True)
    shown = max(after for _, after in encoding.offset_mapping) - (2 if words else 0)
    assert 3 < shown < len(text)
    beginning = ["a", text[:shown]] if words else text[:shown]
    drawn, alone = encoding.columns_XP, whole.columns(beginning)
    assert np.array_equal(drawn[: len(alone) - 16], alone[:-16])
    assert whole.width(text[: shown + 1]) > (whole.width(text[:shown]))
    assert not np.array_equal(cut.columns(given), drawn)


def test_letters_that_do_not_fit_are_on_the_next_canvas(renderer, change):
    text = "mwil" * 30
    whole = change(renderer, max_seq_length=7, cut_letters=False)
    encoding = whole(text, return_offset_mapping=True, return_overflowing_patches=True)
    seen: set[int] = set()
    for window in (encoding, *encoding.overflowing_patches):
        for first, after in window.offset_mapping:
            seen |= set(range(first, after))
    assert seen == set(range(len(text)))


def test_a_font_with_lines_twice_as_high_is_drawn_half_as_large(latin_font, tmp_path):
    content = bytearray(Path(latin_font).read_bytes())
    (num_tables,) = struct.unpack_from(">H", content, 4)
    entries = [struct.unpack_from(">4sIII", content, 12 + 16 * number) for number in range(num_tables)]
    place = next(offset for tag, _, offset, _ in entries if tag == b"hhea") + 4
    above, below = struct.unpack_from(">hh", content, place)
    struct.pack_into(">hh", content, place, 2 * above, 2 * below)
    (tmp_path / "high.ttf").write_bytes(content)
    paths = (latin_font, str(tmp_path / "high.ttf"))

    def scales(main, *fallbacks):
        config = RendererConfig(font_file=main, fallback_fonts=fallbacks, fit_fallbacks=True)
        return [face.scale for face in drawn_faces(config)]

    assert scales(*paths) == [1, pytest.approx(0.5)]
    assert scales(*paths[::-1]) == [1, 1]
    (tmp_path / "high.ttf").write_bytes(content[:100])
    with pytest.raises(DataError, match=r"high\.ttf does not specify its line height"):
        scales(*paths)


def test_fallback_fonts_that_are_too_high_are_scaled_down(renderer, change, noto, fonts):
    burmese = "\u1000\u1019\u1039\u1018\u102c"
    plain, fitted = (
        change(
            renderer,
            font_file=noto,
            fallback_fonts=(str(fonts / "NotoSerifMyanmar-Regular.otf"),),
            fit_fallbacks=fits,
        )
        for fits in (False, True)
    )
    assert fitted.width(burmese) < 0.7 * plain.width(burmese)
    assert np.array_equal(fitted.columns("Latin"), plain.columns("Latin"))


def test_options_with_default_values_do_not_change_a_stored_renderer(renderer, change):
    assert settings(renderer.config).keys().isdisjoint({"show_controls", "cut_letters", "fit_fallbacks"})
    for option in ({"show_controls": True}, {"cut_letters": False}, {"fit_fallbacks": True}):
        assert settings(change(renderer, **option).config).items() >= option.items()


@pytest.fixture
def collection(latin_font, tmp_path):
    """A .ttc file of the Latin font and of the same at half its size, and the files of both."""
    fonts = pytest.importorskip("fontTools.ttLib")
    collection = fonts.TTCollection()
    collection.fonts = [fonts.TTFont(latin_font), fonts.TTFont(latin_font)]
    collection.fonts[1]["head"].unitsPerEm *= 2
    collection.fonts[1].save(tmp_path / "half.ttf")
    collection.save(tmp_path / "both.ttc")
    return tmp_path / "both.ttc", (latin_font, tmp_path / "half.ttf")


def test_a_face_of_a_collection_is_drawn_as_its_own_file(renderer, change, collection, tmp_path):
    path, singles = collection
    for index, single in enumerate(singles):
        for fields in ({}, {"fit_fallbacks": True, "fallback_fonts": (str(singles[0]),)}):
            chosen = change(renderer, font_file=str(path), font_index=index, **fields)
            alone = change(renderer, font_file=str(single), **fields)
            assert np.array_equal(chosen.columns("some words"), alone.columns("some words"))
    save_renderer(chosen, tmp_path / "saved")
    assert np.array_equal(load_renderer(tmp_path / "saved").columns("some words"), chosen.columns("some words"))
    assert np.array_equal(open_renderer(path).columns("words"), open_renderer(singles[0]).columns("words"))
    with pytest.raises(DataError, match="has no face 2\n  it has 2; give a font_index of 1 or less"):
        change(renderer, font_file=str(path), font_index=2).opened()
    with pytest.raises(DataError, match="has no face 1"):
        change(renderer, font_file=str(singles[1]), font_index=1).opened()


def test_a_file_that_is_not_a_font_is_named(tmp_path):
    (tmp_path / "font.woff2").write_bytes(b"wOF2\0\1\0\0\xff")
    with pytest.raises(DataError, match="neither a renderer nor a font"):
        open_renderer(tmp_path / "font.woff2")
