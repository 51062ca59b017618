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
    """Of either engine, with the Latin font."""
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
