"""A renderer that lies on the Hugging Face hub, beside a model or in a data set of rendered rows."""

from __future__ import annotations

import re
from pathlib import Path

from pretrainkit.errors import DataError, MissingPackageError
from pretrainkit.rendering.fonts import SUFFIXES

_NAME = re.compile(r"(datasets/)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_FILES = ("text_renderer_config.json", "rendering.json", "fallback_fonts/*", *(f"*{suffix}" for suffix in SUFFIXES))
_FOLDER_IN_DATA = "renderer"


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
        MissingPackageError: Without huggingface_hub.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise MissingPackageError("huggingface_hub", "hub", f"the renderer {name}") from error
    found = _NAME.fullmatch(name)
    if found is None:
        raise DataError(f"the renderer {name!r} is no name of the hub\n  give USER/NAME or USER/NAME@REVISION")
    is_data, repository, revision = found.groups()
    inside = f"{_FOLDER_IN_DATA}/" if is_data else ""
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
    if not (folder / _FILES[0]).is_file():
        raise DataError(
            f"{name} on the hub holds no renderer: there is no {inside}{_FILES[0]}\n"
            "  name a model that reads rendered text, or give a font"
        )
    return folder
