"""Config fields that hold paths: making them absolute, and removing them from configs that are shared."""

import glob
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pretrainkit.config.base import Config, marked

C = TypeVar("C", bound=Config)
_WILDCARD = re.compile(r"[*?\[{]")


@dataclass(frozen=True)
class IsPath:
    """Marks a field that holds paths of files or folders of this machine: `Annotated[str, IsPath()]`."""

    ending: str = ""
    """Suffix of the values that are paths, such as ".py" if other values are names. A file may be followed by the name
    of an object in it, as in readers.py:READER."""


def absolute_paths(config: C) -> C:
    """Return the config with the paths in every field marked `IsPath`, at any depth, made absolute and `~` expanded.

    A run records this config, so it can be resumed and evaluated from any directory. Addresses (`s3://…`) and paths
    that do not exist, such as names on a hub, do not change.
    """
    values = {name: _absolute(getattr(config, name), mark) for name, _, mark in marked(type(config), IsPath)}
    changed = {name: value for name, value in values.items() if value != getattr(config, name)}
    return config.changed(**changed) if changed else config


def paths_here(config: Config, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted field, path) for each existing relative path in fields marked `IsPath`."""
    for name, _, mark in marked(type(config), IsPath):
        value = getattr(config, name)
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,):
            if mark is None and isinstance(item, Config):
                yield from paths_here(item, f"{prefix}{name}.")
            elif mark is not None and isinstance(item, str) and not is_local(item) and _absolute(item, mark) != item:
                yield f"{prefix}{name}", item


def without_paths(config: C) -> C:
    """Return a config that can be shared: without absolute paths of this machine, at any depth.

    Fields marked `IsPath` that hold such a path get their default; list items that require the path are dropped.
    Hub names and module names do not change. An object in a file keeps the name of the file, without its folder.
    """
    changed = {}
    for name, info, mark in marked(type(config), IsPath):
        value = getattr(config, name)
        if mark is not None and is_local(value) and value != _file_of(value):
            changed[name] = os.path.basename(value)
        elif mark is not None and is_local(value):
            changed[name] = info.get_default(call_default_factory=True, validated_data={})
        elif isinstance(value, dict) or (mark is not None and isinstance(value, tuple)):
            changed[name] = _without_local(value)  # unmarked: settings of another recipe
        elif isinstance(value, Config):
            changed[name] = without_paths(value)
        elif isinstance(value, tuple) and any(isinstance(item, Config) for item in value):
            changed[name] = tuple(without_paths(item) for item in value if not needs_path(item))
    return config.changed(**changed)


def record_beside(path: Path) -> dict[str, Any]:
    """Return the record of the run whose config is the file; empty for other files. It only adds information, so a
    damaged one is ignored."""
    with suppress(OSError, ValueError):
        record = json.loads((path.parent / "provenance.json").read_text(encoding="utf-8"))
        return record if isinstance(record, dict) else {}
    return {}


def moved_paths(tree: Any, before: str | None, now: Path) -> Any:
    """Return the plain values of a config that was recorded in the folder `before`, which is now `now`. An absolute
    path that no longer exists is replaced by the path with the same position relative to the folder, if that exists:
    a project whose folder was moved with its data finds them."""
    if isinstance(tree, dict):
        return {key: moved_paths(value, before, now) for key, value in tree.items()}
    if isinstance(tree, list):
        return [moved_paths(value, before, now) for value in tree]
    if before is None or not is_local(tree) or _names_files(tree):
        return tree
    path = os.path.abspath(now / os.path.relpath(tree, before))
    return path if _names_files(path) else tree


def _names_files(path: str) -> bool:
    return os.path.exists(_file_of(path)) or (
        _WILDCARD.search(path) is not None and bool(glob.glob(path, recursive=True))
    )


def _file_of(value: str) -> str:
    """Return the path of the file that defines an object, as in readers.py:READER; other values do not change."""
    return re.sub(r"(?<=\.py):\w+$", "", value)


def needs_path(config: Config) -> bool:
    """True if a required field holds an absolute path. Objects in files do not count: their file has a name."""
    return isinstance(config, Config) and any(
        mark is not None and info.is_required() and is_local(value) and value == _file_of(value)
        for name, info, mark in marked(type(config), IsPath)
        for value in [getattr(config, name)]
    )


def _without_local(value: Any) -> Any:
    """Remove absolute paths from plain values; list items that are mappings with such a path are dropped."""
    if isinstance(value, dict):
        return {key: _without_local(item) for key, item in value.items() if not is_local(item)}
    if isinstance(value, (list, tuple)):
        return type(value)(
            _without_local(item)
            for item in value
            if not is_local(item) and not (isinstance(item, dict) and any(map(is_local, item.values())))
        )
    return value


def is_local(value: Any) -> bool:
    """True for an absolute path."""
    return isinstance(value, str) and os.path.isabs(value)


def _absolute(value: Any, mark: IsPath | None) -> Any:
    if isinstance(value, Config):
        return absolute_paths(value)
    if isinstance(value, tuple):
        return tuple(_absolute(item, mark) for item in value)
    if mark is None:
        return value
    if isinstance(value, dict):
        return {key: _absolute(item, mark) for key, item in value.items()}
    if not isinstance(value, str) or "://" in value or not _file_of(value).endswith(mark.ending):
        return value
    path = os.path.abspath(os.path.expanduser(value))
    return path if os.path.exists(_file_of(path)) or _WILDCARD.search(value) else value
