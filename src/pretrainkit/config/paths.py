"""Fields of a config that name files or folders, and how they stop depending on the working directory."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pretrainkit.config.base import Config, marked

C = TypeVar("C", bound=Config)
_WILDCARD = re.compile(r"[*?\[{]")


@dataclass(frozen=True)
class IsPath:
    """Marks a field that holds paths of files or folders of this machine: `Annotated[str, IsPath()]`."""

    ending: str = ""
    """Ending of those values that are paths, such as ".py" where others are names of modules."""


def absolute_paths(config: C) -> C:
    """The config with every field marked `IsPath`, at any depth, made absolute and with `~` filled in.

    A run records it, so that it can be resumed and evaluated from anywhere. Addresses (`s3://…`) and what is not there,
    such as the name of something on a hub, stay as they are.
    """
    found = {name: _absolute(getattr(config, name), mark) for name, _, mark in marked(type(config), IsPath)}
    changed = {name: value for name, value in found.items() if value != getattr(config, name)}
    return config.changed(**changed) if changed else config


def paths_here(config: Config, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, value) of every relative path in fields marked `IsPath` that is there on this machine."""
    for name, _, mark in marked(type(config), IsPath):
        value = getattr(config, name)
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,):
            if mark is None and isinstance(one, Config):
                yield from paths_here(one, f"{prefix}{name}.")
            elif mark is not None and isinstance(one, str) and not is_local(one) and _absolute(one, mark) != one:
                yield f"{prefix}{name}", one


def without_paths(config: C) -> C:
    """The config as it can be handed on: without paths of this machine, at any depth.

    A field marked `IsPath` that names one gets its default; an entry of a list that cannot be without it is left out.
    Names, such as those on a hub or of modules, stay.
    """
    changed = {}
    for name, info, mark in marked(type(config), IsPath):
        value = getattr(config, name)
        if mark is not None and is_local(value):
            changed[name] = info.get_default(call_default_factory=True, validated_data={})
        elif isinstance(value, dict) or (mark is not None and isinstance(value, tuple)):
            changed[name] = _without_local(value)  # unmarked: settings of another recipe
        elif isinstance(value, Config):
            changed[name] = without_paths(value)
        elif isinstance(value, tuple) and any(isinstance(one, Config) for one in value):
            changed[name] = tuple(without_paths(one) for one in value if not needs_path(one))
    return config.changed(**changed)


def needs_path(config: Config) -> bool:
    """True if a field that must be given names a path of this machine."""
    return isinstance(config, Config) and any(
        mark is not None and info.is_required() and is_local(getattr(config, name))
        for name, info, mark in marked(type(config), IsPath)
    )


def _without_local(value: Any) -> Any:
    """Plain values without paths of this machine; a mapping in a list that had one is left out."""
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
    """True for a path of this machine."""
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
    if not isinstance(value, str) or "://" in value or not value.endswith(mark.ending):
        return value
    path = os.path.abspath(os.path.expanduser(value))
    return path if os.path.exists(path) or _WILDCARD.search(value) else value
