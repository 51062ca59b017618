"""A renderer by one path or name: a folder, a font, or what lies on the Hugging Face hub, beside a model or in a data
set of rendered rows."""

import re
from pathlib import Path
from typing import Any, Unpack

from pretrainkit.errors import DataError
from pretrainkit.rendering.config import RendererOptions
from pretrainkit.rendering.folder import CONFIG_NAME, load_renderer, validated
from pretrainkit.rendering.fonts import SUFFIXES
from pretrainkit.rendering.renderer import Renderer

_NAME = re.compile(r"(datasets/)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_FILES = (CONFIG_NAME, "rendering.json", "fallback_fonts/*", *(f"*{suffix}" for suffix in SUFFIXES))


def open_renderer(path: str | Path, max_patches: int | None = None, **changes: Unpack[RendererOptions]) -> Renderer:
    """The renderer of a folder, one with the published settings and a font, or one of the hub.

    Args:
        path: Folder of `save_renderer` or of the original, or a .ttf, .otf or .ttc file; else the name of a model on
            the hub (see `fetch_renderer`).
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


def is_hub_name(name: str | Path) -> bool:
    """Whether this may be `USER/NAME`, `USER/NAME@REVISION` or, of a data set, `datasets/USER/NAME`."""
    return _NAME.fullmatch(str(name)) is not None


def fetch_renderer(name: str) -> Path:
    """The folder of a renderer of the hub: settings and fonts, no weights. The hub's own cache keeps it, and gives it
    without a network.

    Args:
        name: `USER/NAME` of a model, or `datasets/USER/NAME` of what `pretrainkit render --push` uploaded; with
            `@REVISION`, a branch, tag or commit.

    Raises:
        DataError: The hub does not give it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    found = _NAME.fullmatch(name)
    if found is None:
        raise DataError(f"the renderer {name!r} is no name of the hub\n  give USER/NAME or USER/NAME@REVISION")
    is_data, repository, revision = found.groups()
    inside = "renderer/" if is_data else ""
    try:
        snapshot = snapshot_download(
            repository,
            repo_type="dataset" if is_data else "model",
            revision=revision,
            allow_patterns=[inside + pattern for pattern in _FILES],
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"the renderer {name} is no folder or font here, and the hub does not give it: {reason}\n"
            "  give the path of a folder or font, or a name on the hub where there is network"
        ) from error
    folder = Path(snapshot) / inside
    if not (folder / CONFIG_NAME).is_file():
        raise DataError(
            f"{name} on the hub holds no renderer: there is no {inside}{CONFIG_NAME}\n"
            "  name a model that reads rendered text, or give a font"
        )
    return folder
