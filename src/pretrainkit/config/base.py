"""The base of every config class: it is frozen and keyword-only, rejects unknown keys, and every field is
documented."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

DEFAULT: Any = object()
"""Remedy value that resets a field to its default."""


class Conflict(str):
    """Message about several settings that contradict each other, with changes that resolve the conflict.

    The loader only changes settings that no user wrote, so a preset's values adapt to the user's overrides.
    """

    settings: tuple[str, ...]
    """Dotted paths of all settings that are involved."""
    remedies: tuple[tuple[str, Any], ...]
    """(Dotted path, value as in JSON or DEFAULT); each solves the problem separately, and the first is preferred."""

    def __new__(cls, message: str, remedies: Iterable[tuple[str, Any]], *others: str) -> "Conflict":
        """Create a conflict; `others` are further settings involved in it, which are never changed."""
        conflict = super().__new__(cls, message)
        conflict.remedies = tuple(remedies)
        conflict.settings = (*others, *(path for path, _ in conflict.remedies))
        return conflict


class ConflictError(ValueError):
    """Raised by validators of a config: a conflict among its fields, with paths relative to that config."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(conflict)
        self.conflict = conflict


class ReadBy(NamedTuple):
    """Marks a field that has an effect only if another field of the same class has one of the given values:
    `Annotated[float, ReadBy("name", ("sgd", "lars"))]`."""

    field: str
    values: tuple[Any, ...]


class Config(BaseModel):
    """Frozen settings. The string under each field is its documentation: unit, range, who uses which value."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    neutral_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields of a model's config that do not affect the output of trained weights, such as dropout rates."""

    def neutral(self) -> frozenset[str]:
        """Return `neutral_fields` and the fields that are neutral because of another field's value."""
        return self.neutral_fields

    def changed(self, **values: Any) -> Self:
        """Return a copy with new values, which are not validated. A dict changes fields inside a nested config."""
        for name, value in values.items():
            if isinstance(value, dict) and isinstance(old := getattr(self, name), Config):
                values[name] = old.changed(**value)
        return self.model_copy(update=values)

    def conflicts(self) -> Sequence[Conflict]:
        """Return conflicts that the loader tries to resolve by changing a setting."""
        return ()

    def unsuited(self, preset: Any) -> Iterable[Conflict]:
        """Return a conflict for each value that comes from `preset`, the base of this config, and does not suit a
        choice in which the two differ.

        These conflicts are not errors. The loader changes the values, except those that a user wrote.
        """
        return ()


class Unread(Conflict):
    """Conflict about a value that has no effect."""


def shown(value: Any) -> str:
    """Format a value as on the command line."""
    if isinstance(value, str):
        return value
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return json.dumps(value, default=str, ensure_ascii=False)


def unread(config: Config, prefix: str = "") -> Iterator[Conflict]:
    """Yield a conflict for each non-default field, at any depth, whose `ReadBy` mark says that it has no effect."""
    for name, info, mark in marked(type(config), ReadBy):
        value, path = getattr(config, name), f"{prefix}{name}"
        if mark is None or getattr(config, mark.field) in mark.values:
            if isinstance(value, Config):
                yield from unread(value, f"{path}.")
            continue
        default = info.get_default(call_default_factory=True)
        for leaf, given, usual in _changed(path, value, default):
            choice, others = f"{prefix}{mark.field}", " or ".join(map(shown, mark.values))
            current = shown(getattr(config, mark.field))
            yield Unread(
                f"{leaf}={shown(given)} has an effect only with {choice}={others}, not with {current}\n"
                f"  remove the setting (default: {leaf}={shown(usual)}), or set {choice}={shown(mark.values[0])}",
                [(leaf, DEFAULT)],
                choice,
            )


@cache
def marked(config_class: type[Config], kind: type[Any]) -> list[tuple[str, FieldInfo, Any]]:
    """Return (name, field, mark of type `kind` or None) for every field."""
    return [
        (name, info, next((mark for mark in info.metadata if isinstance(mark, kind)), None))
        for name, info in config_class.model_fields.items()
    ]


def _changed(path: str, value: Any, default: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, value, default) of every value that differs from its default; nested configs field by field."""
    if isinstance(value, Config) and type(value) is type(default):
        for name in type(value).model_fields:
            yield from _changed(f"{path}.{name}", getattr(value, name), getattr(default, name))
    elif value != default:
        yield path, value, default


def architecture(config: Config) -> dict[str, Any]:
    """Map the dotted path of each field that affects the output of a model's weights to its JSON value."""
    fields: dict[str, Any] = {}
    dumped = config.model_dump(mode="json")
    for name in type(config).model_fields.keys() - config.neutral():
        value = getattr(config, name)
        parts = {name: value}
        if isinstance(value, tuple) and value and isinstance(value[0], Config):
            parts = {f"{name}.{number}": part for number, part in enumerate(value)}
        if all(isinstance(part, Config) for part in parts.values()):
            for path, part in parts.items():
                fields |= {f"{path}.{below}": leaf for below, leaf in architecture(part).items()}
        else:
            fields[name] = dumped[name]
    return dict(sorted(fields.items()))
