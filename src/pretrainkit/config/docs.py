"""Configs explained: every field with its type, value and documentation, as YAML with comments that loads back to the
same config, and as a JSON schema for editors."""

import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from pretrainkit.config.yaml import dump_yaml

_WIDTH = 100
_GLUE = "\x1f"  # stands for a space at which a line must not end
_NAMES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true | false",
    "null": "null",
    "array": "list",
    "object": "settings",
}
_LIMITS = (("exclusiveMinimum", "> {}"), ("minimum", ">= {}"), ("exclusiveMaximum", "< {}"), ("maximum", "<= {}"))


@cache
def field_types(config_class: type[BaseModel]) -> dict[str, str]:
    """Field name to what it takes, in words."""
    schema = config_class.model_json_schema(by_alias=False)
    return {name: _type_text(field, schema.get("$defs", {})) for name, field in schema["properties"].items()}


def to_commented_yaml(config: BaseModel) -> str:
    """The config as YAML that loads back to the same config, each field below a comment with documentation and type.

    Fields of the items of a list are explained at the first item.
    """
    return "".join(line.rstrip() + "\n" for line in _yaml_lines(config, indent="", with_docs=True))


def scalar(value: Any) -> str:
    """A JSON value as one line of YAML that YAML 1.1 and 1.2 readers read alike; mappings and lists in flow style."""
    # In a list, so that what flow style takes for something else is quoted; its brackets are cut off.
    return dump_yaml([value], in_flow=True)[1:-2]


def json_schema(config_class: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a recipe's YAML files, for editors.

    A file holds a difference from what it extends, so no field is required, and `extends` is a field.
    """
    schema = _without_required(config_class.model_json_schema(by_alias=False))
    name = {"type": "string"}
    extends = {
        "anyOf": [name, {"type": "array", "items": name}],
        "description": "Preset or YAML file to start from, or several of which later ones win.",
        "title": "Extends",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "properties": {"extends": extends, **schema["properties"]},
    }


def _yaml_lines(config: BaseModel, indent: str, with_docs: bool) -> Iterator[str]:
    types = field_types(type(config)) if with_docs else {}
    for i, (name, info) in enumerate(type(config).model_fields.items()):
        value = getattr(config, name)
        is_part = isinstance(value, BaseModel)
        if with_docs:
            if i and (is_part or not indent):
                yield ""
            doc = " ".join((info.description or "").split())
            yield from _comment(doc if is_part else f"{doc} {_unbroken(types[name])}", indent)
        if isinstance(value, BaseModel) and type(value).model_fields:
            yield f"{indent}{name}:"
            yield from _yaml_lines(value, f"{indent}  ", with_docs)
        elif isinstance(value, (tuple, list)) and value and all(isinstance(v, BaseModel) for v in value):
            yield f"{indent}{name}:"
            for j, item in enumerate(value):
                yield from _item_lines(item, f"{indent}  ", with_docs and j == 0)
        else:
            yield f"{indent}{name}: {scalar(config.model_dump(mode='json', include={name})[name])}"


def _item_lines(item: BaseModel, indent: str, with_docs: bool) -> Iterator[str]:
    """An item of a list: its first field behind the dash, comments of that field above it."""
    lines = list(_yaml_lines(item, f"{indent}  ", with_docs)) or [f"{indent}  {{}}"]
    first = next(i for i, line in enumerate(lines) if not line.lstrip().startswith("#"))
    for i, line in enumerate(lines):
        yield f"{indent}- {line.lstrip()}" if i == first else line


def _comment(words: str, indent: str) -> list[str]:
    start = f"{indent}# "
    lines = textwrap.wrap(
        words, _WIDTH, initial_indent=start, subsequent_indent=start, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_GLUE, " ") for line in lines]


def _unbroken(type_text: str) -> str:
    """The type in brackets, on one line if it is short."""
    return f"({type_text})".replace(" ", _GLUE if len(type_text) <= 50 else " ")


def _type_text(schema: Mapping[str, Any], definitions: Mapping[str, Any], *, is_item: bool = False) -> str:
    """What a JSON schema allows, in words; settings are named by their fields when they are items of a list."""
    if "$ref" in schema:
        target = definitions.get(schema["$ref"].rpartition("/")[2], {})
        if "properties" not in target:
            return _type_text(target, definitions, is_item=is_item)
        return "{" + ", ".join(target["properties"]) + "}" if is_item else "settings"
    if "const" in schema:
        return f"always {scalar(schema['const'])}"
    if "enum" in schema:
        return " | ".join(scalar(value) for value in schema["enum"])
    choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if choices:
        return " | ".join(dict.fromkeys(_type_text(choice, definitions, is_item=is_item) for choice in choices))
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        if not items and schema.get("prefixItems"):
            return f"[{', '.join(_type_text(item, definitions) for item in schema['prefixItems'])}]"
        item = _type_text(items or {}, definitions, is_item=True)
        return f"list of ({item})" if " | " in item else f"list of {item}"
    limits = [text.format(f"{schema[key]:g}") for key, text in _LIMITS if key in schema]
    return " ".join([_NAMES.get(str(kind), "any value"), " and ".join(limits)]).strip()


def _without_required(schema: Any) -> Any:
    """A copy for differences: nothing is required, and where one of several must fit, any may."""
    if isinstance(schema, Mapping):
        is_class = "properties" in schema
        kept = {
            "anyOf" if key == "oneOf" else key: value if key == "default" else _without_required(value)
            for key, value in schema.items()
            if not (is_class and key == "required") and key != "discriminator"
        }
        if is_class:
            kept["properties"] = {name: _without_required(sub) for name, sub in schema["properties"].items()}
        return kept
    if isinstance(schema, list):
        return [_without_required(item) for item in schema]
    return schema
