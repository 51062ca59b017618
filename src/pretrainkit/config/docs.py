"""Documentation of configs: commented YAML with the type, value and description of every field, which loads back to the
same config, and a JSON schema for editors."""

import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from pretrainkit.config.yaml import dump_yaml

_WIDTH = 100
_GLUE = "\x1f"  # placeholder for a space at which a line must not break
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
    """Map each field name to a readable description of its type."""
    schema = config_class.model_json_schema(by_alias=False)
    return {name: _type_text(field, schema.get("$defs", {})) for name, field in schema["properties"].items()}


def to_commented_yaml(config: BaseModel) -> str:
    """Format the config as YAML that loads back to the same config, with documentation and type above each field.

    Fields of list items are documented at the first item only.
    """
    return "".join(line.rstrip() + "\n" for line in _yaml_lines(config, indent="", with_docs=True))


def scalar(value: Any) -> str:
    """Format a JSON value as one line of YAML that means the same in YAML 1.1 and 1.2; collections in flow style."""
    # Dumped inside a list, so that characters with a meaning in flow style are quoted; the brackets are cut off.
    return dump_yaml([value], in_flow=True)[1:-2]


def json_schema(config_class: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a recipe's YAML files, for editors.

    A file only holds differences from its base, so no field is required, and `extends` is a field.
    """
    schema = _without_required(config_class.model_json_schema(by_alias=False))
    name = {"type": "string"}
    extends = {
        "anyOf": [name, {"type": "array", "items": name}],
        "description": "Preset or YAML file to start from, or a list of them; later entries override earlier ones.",
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
    """Yield the lines of a list item: the dash precedes the first field, whose comments are above."""
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
    """Put the type in parentheses, without line breaks if it is short."""
    return f"({type_text})".replace(" ", _GLUE if len(type_text) <= 50 else " ")


def _type_text(schema: Mapping[str, Any], definitions: Mapping[str, Any], *, is_item: bool = False) -> str:
    """Describe the values that a JSON schema allows. Configs in a list are described by their field names."""
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
    """Copy a schema for partial configs: no field is required, and `oneOf` becomes `anyOf`."""
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
