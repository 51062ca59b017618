"""A renderer by one path."""

from pathlib import Path
from typing import Any

from pretrainkit.rendering.config import RendererConfig
from pretrainkit.rendering.folder import load_renderer
from pretrainkit.rendering.fonts import SUFFIXES
from pretrainkit.rendering.renderer import Renderer


def open_renderer(path: str | Path, max_patches: int | None = None, **changes: Any) -> Renderer:
    """The renderer of a folder, or one with the published settings and a font.

    Args:
        path: Folder of `save_renderer` or of the original, or a .ttf or .otf file.
        max_patches: Of a canvas; None: as the folder says, or 529.
        changes: Fields of `RendererConfig` to set otherwise.

    Raises:
        DataError: There is none, or it draws otherwise than it did.
    """
    changes |= {} if max_patches is None else {"max_seq_length": max_patches}
    if Path(path).suffix.lower() in SUFFIXES and not Path(path).is_dir():
        return Renderer(RendererConfig(font_file=str(path), **changes))
    return load_renderer(path, **changes)
