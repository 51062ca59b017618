"""The base of every config class: frozen, keyword-only, unknown keys refused, every field documented."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

DEFAULT: Any = object()
"""As a remedy: the default of a field."""


class Conflict(str):
    """A problem, as a message, of several settings that cannot be together; one of them can give way.

    The loader lets those give way that no user wrote, so that a preset's values follow what the user overrides.
    """

    settings: tuple[str, ...]
    """Dotted paths of all settings that are involved."""
    remedies: tuple[tuple[str, Any], ...]
    """(Dotted path, value as in JSON or DEFAULT); each alone solves the problem, and the first is preferred."""

    def __new__(cls, message: str, remedies: Iterable[tuple[str, Any]], *others: str) -> "Conflict":
        """`others` are involved, too, but cannot give way."""
        conflict = super().__new__(cls, message)
        conflict.remedies = tuple(remedies)
        conflict.settings = (*others, *(path for path, _ in conflict.remedies))
        return conflict


class ConflictError(ValueError):
    """For validators of a config: a conflict among its fields, whose paths begin at that config."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(conflict)
        self.conflict = conflict


class ReadBy(NamedTuple):
    """Marks a field that is read only where another field of the same class has one of some values:
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
    """Of a model's config: fields that change nothing of what trained weights compute, such as rates of dropout."""

    def neutral(self) -> frozenset[str]:
        """`neutral_fields`, and those that are neutral because of what another field says."""
        return self.neutral_fields

    def changed(self, **values: Any) -> Self:
        """A copy with other values, which are not checked; of a field that is a config, a dict changes fields in it."""
        for name, value in values.items():
            if isinstance(value, dict) and isinstance(old := getattr(self, name), Config):
                values[name] = old.changed(**value)
        return self.model_copy(update=values)

    def conflicts(self) -> Sequence[Conflict]:
        """Problems for which the loader looks for a setting that can give way."""
        return ()

    def unsuited(self, preset: Any) -> Iterable[Conflict]:
        """Values of `preset`, which this config was made from, that do not suit other choices than those of the preset.

        They are no problems: what a user wrote stays.
        """
        return ()


class Unread(Conflict):
    """Of a value that nothing reads."""


def shown(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, str):
        return value
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return json.dumps(value, default=str, ensure_ascii=False)


def unread(config: Config, prefix: str = "") -> Iterator[Conflict]:
    """A conflict for each field at any depth that is marked `ReadBy`, is not read, and has not its default."""
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
                f"{leaf}={shown(given)} is only read by {choice}={others}, not by {current}\n"
                f"  leave it out, which is {leaf}={shown(usual)}, or set {choice}={shown(mark.values[0])}",
                [(leaf, DEFAULT)],
                choice,
            )


@cache
def marked(config_class: type[Config], kind: type[Any]) -> list[tuple[str, FieldInfo, Any]]:
    """(Name, field, its mark of this kind or None) of every field."""
    return [
        (name, info, next((mark for mark in info.metadata if isinstance(mark, kind)), None))
        for name, info in config_class.model_fields.items()
    ]


def _changed(path: str, value: Any, default: Any) -> Iterator[tuple[str, Any, Any]]:
    """(Path, value, default) of what differs from the default; of settings each field alone."""
    if isinstance(value, Config) and type(value) is type(default):
        for name in type(value).model_fields:
            yield from _changed(f"{path}.{name}", getattr(value, name), getattr(default, name))
    elif value != default:
        yield path, value, default


def architecture(config: Config) -> dict[str, Any]:
    """Dotted path to JSON value of every field of a model's config that decides what given weights compute."""
    found: dict[str, Any] = {}
    dumped = config.model_dump(mode="json")
    for name in type(config).model_fields.keys() - config.neutral():
        value = getattr(config, name)
        parts = {name: value}
        if isinstance(value, tuple) and value and isinstance(value[0], Config):
            parts = {f"{name}.{number}": part for number, part in enumerate(value)}
        if all(isinstance(part, Config) for part in parts.values()):
            for path, part in parts.items():
                found |= {f"{path}.{below}": leaf for below, leaf in architecture(part).items()}
        else:
            found[name] = dumped[name]
    return dict(sorted(found.items()))
