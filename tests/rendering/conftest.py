"""Real fonts for the tests, where the sample data is."""

from pathlib import Path

import pytest

from pretrainkit.errors import MissingPackageError
from pretrainkit.rendering import Renderer, RendererConfig


@pytest.fixture(scope="session")
def fonts(sample_data) -> Path:
    """Folder of the real fonts."""
    folder = sample_data / "fonts"
    if not folder.is_dir():
        pytest.skip("sample fonts not present")
    return folder


@pytest.fixture(scope="session")
def noto(fonts) -> str:
    """Noto Sans Regular: Latin, Greek, Cyrillic."""
    return str(fonts / "NotoSans-Regular.otf")


@pytest.fixture(scope="session")
def has_pango() -> None:
    """Skips where the system has no Pango."""
    from pretrainkit.rendering.pango_library import pango_library

    try:
        pango_library()
    except MissingPackageError as error:
        pytest.skip(str(error).splitlines()[0])


@pytest.fixture(params=["freetype", "pango"])
def renderer(request, latin_font) -> Renderer:
    """Renderer of either engine, with the Latin font."""
    if request.param == "pango":
        request.getfixturevalue("has_pango")
    else:
        pytest.importorskip("freetype")
    return Renderer(RendererConfig(engine=request.param, font_file=latin_font, on_missing="ignore"))


def changed(renderer: Renderer, **fields: object) -> Renderer:
    """The renderer with other settings."""
    return Renderer(RendererConfig.model_validate(renderer.config.model_dump() | fields))


@pytest.fixture
def change():
    return changed


@pytest.fixture
def drawn_font():
    """A function that writes fonts."""
    return write_font


def write_font(path: Path, family: str, characters: str, *, weight: int = 400, pairs: str = "") -> str:
    """A font file that draws each character as a square; `pairs` are two characters that become one glyph."""
    builder = pytest.importorskip("fontTools.fontBuilder").FontBuilder(1000, isTTF=True)
    pens = pytest.importorskip("fontTools.pens.ttGlyphPen")
    names = [".notdef", *(f"u{ord(character):05X}" for character in characters), "pair"]
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(map(ord, characters), names[1:], strict=False)))
    pen = pens.TTGlyphPen(None)
    pen.moveTo((0, 0))
    for point in ((0, 600), (600, 600), (600, 0)):
        pen.lineTo(point)
    pen.closePath()
    square = pen.glyph()
    builder.setupGlyf(dict.fromkeys(names, square))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (700, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Bold" if weight > 500 else "Regular"})
    builder.setupOS2(usWeightClass=weight)
    builder.setupPost()
    if pairs:
        first, second = (f"u{ord(character):05X}" for character in pairs)
        builder.addOpenTypeFeatures(f"feature ccmp {{ sub {first} {second} by pair; }} ccmp;")
    builder.save(path)
    return str(path)
