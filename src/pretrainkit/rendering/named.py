"""A renderer by one path or name."""

from pathlib import Path
from typing import Any, Unpack

from pretrainkit.errors import DataError
from pretrainkit.rendering.config import RendererOptions
from pretrainkit.rendering.folder import CONFIG_NAME, load_renderer, validated
from pretrainkit.rendering.fonts import SUFFIXES
from pretrainkit.rendering.hub_renderer import fetch_renderer, is_hub_name
from pretrainkit.rendering.renderer import Renderer


def open_renderer(path: str | Path, max_patches: int | None = None, **changes: Unpack[RendererOptions]) -> Renderer:
    """The renderer of a folder, one with the published settings and a font, or one of the hub.

    Args:
        path: Folder of `save_renderer` or of the original, or a .ttf, .otf or .ttc file; else the name of a model on
            the hub (see `hub_renderer.fetch_renderer`).
        max_patches: Of a canvas; None: as the folder says, or 529.
        changes: Fields of `RendererConfig` to set otherwise.

    Raises:
        DataError: There is none, or it draws otherwise than it did.
        ConfigError: A field or a value is not known.
    """
    given: dict[str, Any] = {**changes, **({} if max_patches is None else {"max_seq_length": max_patches})}
    if Path(path).suffix.lower() in SUFFIXES and not Path(path).is_dir():
        return Renderer(validated({"font_file": str(path), **given}, Path(path))).opened()
    if Path(path).is_file() and Path(path).suffix.lower() != ".json":
        raise DataError(
            f"{path} is neither a renderer nor a font that can be drawn\n"
            f"  give a font that ends in {', '.join(SUFFIXES)}, or a folder with a {CONFIG_NAME}"
        )
    if not Path(path).exists() and is_hub_name(path):
        path = fetch_renderer(str(path))
    return load_renderer(path, **given)
