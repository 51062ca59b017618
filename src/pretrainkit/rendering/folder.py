"""Save and load renderers: a folder with the settings, the fonts and a fingerprint of the pixels; or a name on the hub.

`text_renderer_config.json` beside the font has the original's format, so that its programs can load it.
`rendering.json` has the other settings and the description of `identity.py`; `fallback_fonts/` has the fallback fonts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from pathlib import Path
from typing import Any, Literal, Unpack

from pydantic import ValidationError

from pretrainkit.config.explain import explain
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.files.manifest import atomic_file, explained_write_errors, write_text
from pretrainkit.rendering.config import RendererConfig, RendererOptions
from pretrainkit.rendering.fonts import SUFFIXES, font_files
from pretrainkit.rendering.identity import describe, difference
from pretrainkit.rendering.renderer import Renderer

CONFIG_NAME = "text_renderer_config.json"
EXTRAS_NAME = "rendering.json"
FALLBACKS_NAME = "fallback_fonts"

_SHARED = (
    *("background_color", "dpi", "font_color", "font_file", "font_size"),
    *("max_seq_length", "pad_size", "pixels_per_patch"),
)
"""Keys of the original's file that are also fields of `RendererConfig`."""
_TYPES = {"freetype": "PyGameTextRenderer", "pango": "PangoCairoTextRenderer"}
_IGNORED = {"text_renderer_type", "fonts_list"}
_NUMBER = re.compile(r"^(\d{3}-)+")
"""Number prefix of a font's name, which `save_renderer` adds to fallback fonts. It is removed before another save."""
_HUB_NAME = re.compile(r"(datasets/)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_FILES = (CONFIG_NAME, EXTRAS_NAME, f"{FALLBACKS_NAME}/*", *(f"*{suffix}" for suffix in SUFFIXES))


def save_renderer(renderer: Renderer, folder: str | Path) -> None:
    """Write the renderer's folder, and replace existing files. Raises DataError if the folder cannot be written or a
    font is missing."""
    folder, config = Path(folder), renderer.config
    main, *fallbacks = font_files(config.font_file, config.fallback_fonts)
    _copy(main, folder / main.name)
    names: list[str] = []
    for number, path in enumerate(fallbacks):
        names.append(f"{number:03d}-{_NUMBER.sub('', path.name)}")
        _copy(path, folder / FALLBACKS_NAME / names[-1])
    values = config.model_dump(mode="json")
    # 8 instead of 8.0, as the original writes it.
    is_whole = {name: isinstance(values[name], float) and values[name].is_integer() for name in _SHARED}
    shared = {name: int(values[name]) if is_whole[name] else values[name] for name in _SHARED}
    shared |= {"font_file": main.name, "text_renderer_type": _TYPES[config.engine]}
    if config.engine == "pango":
        shared |= {"rgb": config.rgb, "fonts_list": []}
    extras = {name: value for name, value in values.items() if name not in _SHARED}
    extras["fallback_fonts"] = names
    _write(folder / EXTRAS_NAME, {"config": extras, "rendering": describe(renderer)})
    _write(folder / CONFIG_NAME, shared)


def load_renderer(
    source: str | Path,
    *,
    on_change: Literal["error", "warn", "ignore"] = "error",
    **changes: Any,
) -> Renderer:
    """Open a renderer from its folder, or from the original's JSON file beside its font.

    A folder without `rendering.json` was written by the original. It is loaded with `parity`, and with the engine of
    the class that wrote it; freetype (PyGame) if the file does not name a class. Raises DataError if a file is missing
    or broken or the pixels have changed, and ConfigError if a key or a value is invalid.

    Args:
        on_change: Action if the test page is drawn differently from when the folder was written.
        changes: Fields of `RendererConfig` to override.
    """
    path = Path(source)
    path = path / CONFIG_NAME if path.is_dir() else path
    stored, extras_path = _read(path), path.parent / EXTRAS_NAME
    extras = _read(extras_path) if extras_path.exists() else None
    values = _values(stored, path)
    if extras is not None:
        if not isinstance(extras.get("config"), dict) or not isinstance(extras.get("rendering"), dict):
            raise DataError(
                f"{extras_path} lacks the entry 'config' or 'rendering'\n  write the folder again with save_renderer"
            )
        values |= extras["config"]
    name = stored.get("font_file")
    if not isinstance(name, str) or not Path(name).name:
        raise DataError(f"{path} names no font\n  set its font_file to the name of a file beside it")
    values["font_file"] = str(path.parent / Path(name).name)
    fallbacks = values.get("fallback_fonts", [])
    if not isinstance(fallbacks, list):
        raise DataError(f"{extras_path}: fallback_fonts is not a list\n  write the folder again with save_renderer")
    values["fallback_fonts"] = [str(path.parent / FALLBACKS_NAME / Path(str(font)).name) for font in fallbacks]
    config = validated(values | changes, path)
    for font in (config.font_file, *config.fallback_fonts):
        if not os.path.exists(font):  # pathlib raises an error if the name is too long
            raise DataError(
                f"the renderer {path.parent} has no font {font}\n  put the file there; {path.name} needs it"
            )
    if extras is not None and on_change != "ignore":
        changed = difference(extras.get("rendering", {}), describe(Renderer(validated(values, path))))
        if changed:
            message = (
                f"the renderer {path.parent} no longer draws the same pixels: {changed}\n"
                "  restore the fonts, settings and versions with which it was made, or accept the change in Python:\n"
                f"  save_renderer(load_renderer({str(path.parent)!r}, on_change='warn'), 'NEW')"
            )
            if on_change == "error":
                raise DataError(message)
            warnings.warn(message, stacklevel=2)
    return Renderer(config).opened()


def is_renderer(folder: Path) -> bool:
    """Return True if the folder contains a renderer."""
    return (folder / CONFIG_NAME).is_file()


def copy_renderer(origin: Path, out: Path) -> None:
    """Copy the files of a renderer from the folder `origin`, which may contain other files, to the folder `out`. Raises
    DataError if the font is missing or `out` cannot be written."""
    font = Path(str(_read(origin / CONFIG_NAME).get("font_file", ""))).name
    fallbacks = sorted((origin / FALLBACKS_NAME).glob("*"))
    with explained_write_errors(out):
        for path in (origin / font, *fallbacks, origin / EXTRAS_NAME, origin / CONFIG_NAME):
            if path.is_file():
                _copy(path, out / path.relative_to(origin))
    if not (out / font).is_file():
        raise DataError(f"{origin} has no font {font!r}, which its {CONFIG_NAME} names\n  put it there")


def _values(stored: dict[str, Any], path: Path) -> dict[str, Any]:
    """Convert the content of the original's file to fields of `RendererConfig`."""
    unknown = stored.keys() - set(_SHARED) - _IGNORED - {"rgb"}
    if unknown:
        raise ConfigError(
            f"{path} has unknown keys: {', '.join(sorted(unknown))}\n"
            f"  known keys: {', '.join(sorted({*_SHARED, *_IGNORED, 'rgb'}))}"
        )
    engine = "pango" if stored.get("text_renderer_type") == _TYPES["pango"] or "rgb" in stored else "freetype"
    values = {name: stored[name] for name in (*_SHARED, "rgb") if name in stored}
    return values | {"engine": engine, "parity": True}


def validated(values: dict[str, Any], path: Path) -> RendererConfig:
    """Return a config with these values. Raises ConfigError, which names the folder of `path`, if a field or a value is
    invalid."""
    try:
        return RendererConfig.model_validate(values)
    except ValidationError as error:
        problems = explain(error, RendererConfig)
        raise ConfigError([f"renderer of {path.parent}: {problem}" for problem in problems]) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"renderer {path} cannot be read: {error.strerror}\n  give a folder with a {CONFIG_NAME}"
        ) from error
    except ValueError as error:
        raise DataError(f"renderer {path} is not valid JSON: {error}\n  write it again with save_renderer") from error
    if not isinstance(content, dict):
        raise DataError(f"renderer {path} is not a JSON object\n  write it again with save_renderer")
    return content


def _write(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def _copy(source: Path, target: Path) -> None:
    if target.exists() and target.samefile(source):
        return
    with atomic_file(target) as file, open(source, "rb") as font:
        shutil.copyfileobj(font, file)


def open_renderer(path: str | Path, max_patches: int | None = None, **changes: Unpack[RendererOptions]) -> Renderer:
    """Open a renderer from a folder or from the hub, or create one with the published settings and a font. Raises
    DataError if there is none or its pixels have changed, and ConfigError if a field or a value is invalid.

    Args:
        path: Folder of `save_renderer` or of the original; a .ttf, .otf or .ttc file; or the name of a model on the hub
            (see `fetch_renderer`).
        max_patches: Number of patches of a canvas; None: the folder's value, or 529.
        changes: Fields of `RendererConfig` to override.
    """
    overrides: dict[str, Any] = {**changes, **({} if max_patches is None else {"max_seq_length": max_patches})}
    if Path(path).suffix.lower() in SUFFIXES and not Path(path).is_dir():
        return Renderer(validated({"font_file": str(path), **overrides}, Path(path))).opened()
    if Path(path).is_file() and Path(path).suffix.lower() != ".json":
        raise DataError(
            f"{path} is neither a renderer nor a font\n"
            f"  give a font file that ends in {', '.join(SUFFIXES)}, or a folder with a {CONFIG_NAME}"
        )
    if not Path(path).exists() and is_hub_name(path):
        path = fetch_renderer(str(path))
    return load_renderer(path, **overrides)


def is_hub_name(name: str | Path) -> bool:
    """Return True if the name has the form `USER/NAME`, `USER/NAME@REVISION` or `datasets/USER/NAME`."""
    return _HUB_NAME.fullmatch(str(name)) is not None


def fetch_renderer(name: str) -> Path:
    """Download the folder of a renderer from the hub: settings and fonts, without weights. The hub's cache keeps it, so
    that it also works without a network later.

    `name` is `USER/NAME` of a model, or `datasets/USER/NAME` of a data set that `pretrainkit render --push` uploaded;
    `@REVISION` may follow: a branch, tag or commit. Raises DataError if it cannot be downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    match = _HUB_NAME.fullmatch(name)
    if match is None:
        raise DataError(f"the renderer {name!r} is not a valid name of the hub\n  give USER/NAME or USER/NAME@REVISION")
    is_data, repository, revision = match.groups()
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
            f"the renderer {name} is not a local folder or font, and cannot be downloaded from the hub: {reason}\n"
            "  give the path of a folder or font, or a name on the hub and a network connection"
        ) from error
    folder = Path(snapshot) / inside
    if not (folder / CONFIG_NAME).is_file():
        raise DataError(
            f"{name} on the hub has no renderer: there is no {inside}{CONFIG_NAME}\n"
            "  name a model that reads rendered text, or give a font"
        )
    return folder
