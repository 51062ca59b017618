"""YAML as configs use it: with YAML 1.2's booleans and floats, `on`, `off` and `no` are words and 1e-4 is a number."""

import re
import shlex
from collections.abc import Hashable
from typing import Any

import yaml

from pretrainkit.errors import ConfigError

_SafeLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""By libyaml where PyYAML was built with it: ten times as fast."""


class _Loader(_SafeLoader):  # type: ignore[misc, valid-type]  # chosen above
    """SafeLoader without YAML 1.1's surprises; a key given twice is an error, not a silent choice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, f"line {line}: {key!r} cannot be a key")
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"line {line}: the key {key!r} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


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
    """Quotes whatever YAML 1.1 or `_Loader` would take for something else than a string."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


class _TupleLoader(_Loader):
    """Also takes `!!python/tuple`, which files of older libraries have, and no other Python tag."""


_TupleLoader.add_constructor(
    "tag:yaml.org,2002:python/tuple", lambda loader, node: tuple(loader.construct_sequence(node, deep=True))
)


def parse_yaml(text: str, where: str, *, tuples: bool = False) -> Any:
    """The value of a YAML text; `where` names it in errors. With `tuples` the tag `!!python/tuple` is taken for a list
    that must not change. Raises ConfigError on anything that is not plain YAML."""
    try:
        return yaml.load(text, Loader=_TupleLoader if tuples else _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(_explain(error, text, where)) from None


def _explain(error: yaml.YAMLError, text: str, where: str) -> str:
    """What is wrong, where, and how to fix it, without the parser's own words."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:  # our own, or a character that no text has
        reason = str(getattr(error, "problem", None) or f"it holds {getattr(error, 'character', 'something')!r}")
        return f"{where} is not valid YAML: {reason}\n  remove that"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else (lines or [""])[-1]
    tab = next((number for number, one in enumerate(lines, 1) if "\t" in one[: len(one) - len(one.lstrip())]), None)
    if tab is not None:
        fix = f"  put two spaces for each tab: sed -i 's/\\t/  /g' {shlex.quote(where)}"
        return f"{where} is not valid YAML: line {tab} begins with a tab, and YAML takes only spaces there\n{fix}"
    return (
        f"{where} is not valid YAML: line {mark.line + 1}, column {mark.column + 1} cannot be read\n"
        f"  given:   {line.strip()}\n"
        "  close every bracket and quote, indent fields of one part alike, write NAME: VALUE with a space behind the "
        "colon,\n  and put texts with special characters in quotes"
    )


def key_lines(text: str) -> dict[str, int]:
    """Dotted path of each key of a YAML text that `parse_yaml` reads, to its line, from 1."""
    found = {}

    def walk(node: yaml.Node | None, prefix: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                found[f"{prefix}{key.value}"] = key.start_mark.line + 1
                walk(value, f"{prefix}{key.value}.")

    walk(yaml.compose(text, Loader=_Loader), "")
    return found


class _FlowDumper(_Dumper):
    """Quotes as JSON does."""

    def choose_scalar_style(self) -> str:
        value: str = self.event.value  # type: ignore[union-attr]  # of a scalar, here
        has_space_around = value != value.strip()  # of any kind, such as a no-break space
        return '"' if has_space_around else str(super().choose_scalar_style()).replace("'", '"')


def dump_yaml(value: Any, *, in_flow: bool = False) -> str:
    """Plain YAML that `parse_yaml` reads back to the same value; `in_flow`: on one line."""
    layout: dict[str, Any] = {"default_flow_style": True, "width": float("inf")} if in_flow else {"width": 120}
    return yaml.dump(value, Dumper=_FlowDumper if in_flow else _Dumper, sort_keys=False, allow_unicode=True, **layout)
