"""YAML with the booleans and floats of version 1.2: `on`, `off` and `no` are strings and 1e-4 is a number."""

import re
import shlex
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from pretrainkit.errors import ConfigError

_SafeLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Loader of libyaml, ten times as fast, if PyYAML was built with it."""


MAX_DEPTH, _MAX_NODES = 100, 1_000_000


class _Loader(_SafeLoader):  # type: ignore[misc, valid-type]  # chosen above
    """SafeLoader with YAML 1.2's booleans and floats; keys with two values are an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Hashable, yaml.Node] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str | int | float | None):  # those of JSON
                raise yaml.constructor.ConstructorError(None, None, f"line {line}: {key!r} cannot be a key")
            if key in seen and self._value(seen[key]) != self._value(value_node):
                raise yaml.constructor.ConstructorError(None, None, f"line {line}: the key {key!r} is given twice")
            seen[key] = value_node
        return super().construct_mapping(node, deep)

    def _value(self, node: yaml.Node) -> Any:
        return self.construct_object(node, deep=True)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in pairs if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float")
    ]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_FLOAT = re.compile(r"^[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false|True|False)$"), list("tfTF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes strings which YAML 1.1 or `_Loader` would read as another type."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


class _TupleLoader(_Loader):
    """Loader that also accepts the tag `!!python/tuple`, which older libraries write, but no other Python tag."""


_TupleLoader.add_constructor(
    "tag:yaml.org,2002:python/tuple", lambda loader, node: tuple(loader.construct_sequence(node, deep=True))
)


def read_text(path: Path) -> str:
    """Return the text of a config file. Raises ConfigError if it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}\n  check the path and its permissions") from None
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read {path}: it is not text in UTF-8\n  name a config file") from None


def parse_yaml(text: str, where: str, *, tuples: bool = False) -> Any:
    """Parse a YAML text; `where` is its name in errors. With `tuples`, values tagged `!!python/tuple` become tuples.
    Raises ConfigError for anything that is not plain YAML."""
    try:
        _check_size(text)
        return yaml.load(text, Loader=_TupleLoader if tuples else _Loader)  # noqa: S506 - both are SafeLoaders
    except yaml.YAMLError as error:
        raise ConfigError(_explain(error, text, where)) from None
    except (
        ValueError,
        OverflowError,
        AttributeError,
    ) as error:  # an impossible or malformed date; a long number
        raise ConfigError(f"{where} is not valid YAML: {error}\n  put quotes around this value") from None


def _check_size(text: str) -> None:
    """Raise YAMLError for values that are nested too deeply, which would overflow the stack of libyaml, and for aliases
    that contain themselves, or whose copies multiply."""
    sizes: dict[str | None, int] = {}  # nodes of each anchor, 0 while it is open
    num_nodes: list[int] = [0]  # of each open collection
    anchors: list[str | None] = []
    for event in yaml.parse(text, Loader=_SafeLoader):
        problem = None
        if isinstance(event, yaml.CollectionStartEvent):
            sizes[event.anchor] = 0
            anchors.append(event.anchor)
            num_nodes.append(0)
            problem = f"more than {MAX_DEPTH} nested values" if len(anchors) > MAX_DEPTH else None
        elif isinstance(event, yaml.CollectionEndEvent):
            size = num_nodes.pop() + 1
            sizes[anchors.pop()] = size
            num_nodes[-1] += size
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1
            num_nodes[-1] += 1
        elif isinstance(event, yaml.AliasEvent):
            num_nodes[-1] += sizes.get(event.anchor, 1)
            problem = f"the alias *{event.anchor} contains itself" if sizes.get(event.anchor) == 0 else None
        if num_nodes[-1] > _MAX_NODES:
            problem = f"more than {_MAX_NODES:,} values, counting the copies of aliases"
        if problem:
            line = event.start_mark.line + 1 if event.start_mark else "?"
            raise yaml.constructor.ConstructorError(None, None, f"line {line}: {problem}")


def _explain(error: yaml.YAMLError, text: str, where: str) -> str:
    """Return a message with the problem, its position and how to fix it, without the parser's terms."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:  # an error of `_Loader`, or an invalid character
        reason = str(getattr(error, "problem", None) or f"it holds {getattr(error, 'character', 'something')!r}")
        return f"{where} is not valid YAML: {reason}\n  remove that"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else (lines or [""])[-1]
    tab = next((n for n, text in enumerate(lines, 1) if "\t" in text[: len(text) - len(text.lstrip())]), None)
    if tab is not None:
        fix = f"  replace each tab by two spaces: sed -i 's/\\t/  /g' {shlex.quote(where)}"
        return f"{where} is not valid YAML: line {tab} begins with a tab, but YAML allows only spaces there\n{fix}"
    return (
        f"{where} is not valid YAML: line {mark.line + 1}, column {mark.column + 1} cannot be read\n"
        f"  given:   {line.strip()}\n"
        "  close every bracket and quote, indent all fields of one mapping equally, write NAME: VALUE with a space "
        "after the colon,\n  and quote strings with special characters"
    )


def key_lines(text: str) -> dict[str, int]:
    """Map the dotted path of each key of a valid YAML text to its line number, from 1."""
    numbers = {}

    def walk(node: yaml.Node | None, prefix: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                numbers[f"{prefix}{key.value}"] = key.start_mark.line + 1
                walk(value, f"{prefix}{key.value}.")

    walk(yaml.compose(text, Loader=_Loader), "")
    return numbers


class _FlowDumper(_Dumper):
    """Dumper that uses JSON's double quotes."""

    def choose_scalar_style(self) -> str:
        value: str = self.event.value  # type: ignore[union-attr]  # only called for scalars
        has_space_around = value != value.strip()  # of any kind, such as a no-break space
        return '"' if has_space_around else str(super().choose_scalar_style()).replace("'", '"')


def dump_yaml(value: Any, *, in_flow: bool = False) -> str:
    """Format a value as plain YAML, which `parse_yaml` reads back to the same value; with `in_flow` on one line."""
    layout: dict[str, Any] = {"default_flow_style": True, "width": float("inf")} if in_flow else {"width": 120}
    return yaml.dump(value, Dumper=_FlowDumper if in_flow else _Dumper, sort_keys=False, allow_unicode=True, **layout)
