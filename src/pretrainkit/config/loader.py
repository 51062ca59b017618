"""From a preset or YAML file and `path=value` words to a checked config that knows where each value came from.

A config source is a preset (`bert/tiny`), a YAML file, or a mapping. A YAML file holds a difference: `extends:` names
one preset or file, or several of which later ones win; the other keys are laid over that. Command-line words come last.
All problems are reported together.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from pretrainkit.config.yaml import parse_yaml
from pretrainkit.errors import ConfigError

Tree = dict[str, Any]
Origins = dict[str, str]
C = TypeVar("C", bound=BaseModel)


class Catalog(Protocol):
    """Where presets and config classes come from; the recipes provide it."""

    def preset(self, name: str) -> BaseModel:
        """The config of a preset. Raises ConfigError with the nearest names."""

    def config_class(self, recipe: str) -> type[BaseModel]:
        """The config class of a recipe. Raises ConfigError with the known ones."""


@dataclass(frozen=True)
class Resolved:
    """A checked config and the origin of each of its values."""

    config: Any
    origins: Origins
    """Dotted path of each leaf to 'preset bert/tiny', 'file x.yaml', or 'command line'."""


def resolve(source: str | Path | Mapping[str, Any], overrides: Iterable[str], catalog: Catalog) -> Resolved:
    """Build the config of `source` with `overrides` (each `dotted.path=value`) on top.

    Raises:
        ConfigError: Unknown preset or file, unknown keys, wrong types: every problem found, each with its mend.
    """
    tree, origins = _load(source, catalog, ())
    problems: list[str] = []
    for word in overrides:
        try:
            path, value = parse_override(word)
        except ConfigError as error:
            problems += error.problems
            continue
        _lay_over(tree, origins, _nested(path, value), "command line", catalog)
    recipe = tree.get("recipe")
    if not isinstance(recipe, str):
        raise ConfigError(
            [*problems, f"{source}: no recipe is named\n  add 'extends: RECIPE/PRESET' or 'recipe: NAME'"]
        )
    config_class = catalog.config_class(recipe)
    try:
        config = config_class.model_validate(tree)
    except ValidationError as error:
        name = source if isinstance(source, str) else recipe
        raise ConfigError(problems + [_explain(e, config_class, str(name)) for e in error.errors()]) from None
    if problems:
        raise ConfigError(problems)
    leaves = flatten(config.model_dump(mode="json"))
    return Resolved(config, {path: _origin_of(path, origins) for path in leaves})


def parse_override(word: str) -> tuple[list[str], Any]:
    """'a.b=1e-4' to (['a', 'b'], 0.0001). The value is YAML; a text that is not valid YAML is taken as it stands."""
    path, equals, text = word.partition("=")
    parts = path.strip().split(".")
    if not equals or not all(re.fullmatch(r"\w+", part) for part in parts):
        raise ConfigError(
            f"cannot read {word!r}\n  settings are given as dotted.path=value, e.g. optimizer.peak_lr=1e-4"
        )
    try:
        return parts, parse_yaml(text, word)
    except ConfigError:
        return parts, text


def config_of_words(config_class: type[C], words: Iterable[str], option: str) -> C:
    """A config without layers from the `NAME=VALUE` words of an option such as `--slurm`.

    Values are texts, but for lists [a, b], mappings {a: 1} and null.

    Raises:
        ConfigError: Every problem found.
    """
    tree: Tree = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"cannot read {option} {word!r}\n  write it like {option} NAME=VALUE")
        tree[name.strip()] = parse_yaml(text, word) if text.startswith(("[", "{")) or text == "null" else text
    try:
        return config_class.model_validate(tree)
    except ValidationError as error:
        fields = f"\n  fields of {option}: {', '.join(config_class.model_fields)}"
        found = [_explain(e, config_class, option).partition("\n  all fields")[0] for e in error.errors()]
        raise ConfigError(
            [f"{option}: {problem}" for problem in found[:-1]] + [f"{option}: {found[-1]}{fields}"]
        ) from None


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings to {dotted path: leaf}; lists are leaves."""
    if isinstance(tree, Mapping) and tree:
        return {
            k: v for key, sub in tree.items() for k, v in flatten(sub, f"{prefix}.{key}" if prefix else key).items()
        }
    return {prefix: tree}


def fields_under(config_class: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Dotted path of every field below a config class, to its documentation."""
    found: dict[str, str] = {}
    for name, info in config_class.model_fields.items():
        path = f"{prefix}.{name}" if prefix else name
        found[path] = info.description or ""
        for sub in config_classes_in(info.annotation):
            found |= fields_under(sub, path)
    return found


def config_classes_in(annotation: Any) -> list[type[BaseModel]]:
    """The config classes that an annotation allows: through Optional, unions and Annotated, not through lists."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    if getattr(annotation, "__origin__", None) in (list, tuple, dict):
        return []
    return [c for arg in get_args(annotation) for c in config_classes_in(arg)]


def _load(source: str | Path | Mapping[str, Any], catalog: Catalog, trail: tuple[str, ...]) -> tuple[Tree, Origins]:
    if isinstance(source, Mapping):
        return _extend(dict(source), "given mapping", Path(), catalog, trail)
    name = str(source)
    if not name.endswith((".yaml", ".yml")):
        tree = catalog.preset(name).model_dump(mode="json")
        return tree, dict.fromkeys(flatten(tree), f"preset {name}")
    path = Path(name)
    if str(path.resolve()) in trail:
        raise ConfigError(f"{name} extends itself\n  chain: {' -> '.join([*trail, str(path.resolve())])}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {name}\n  presets are listed by: pretrainkit recipes") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config file {name}\n  {error}") from None
    tree = parse_yaml(text, name)
    if not isinstance(tree, dict):
        raise ConfigError(f"{name} holds {type(tree).__name__}, not a mapping of settings")
    return _extend(tree, f"file {name}", path.parent, catalog, (*trail, str(path.resolve())))


def _extend(tree: Tree, origin: str, folder: Path, catalog: Catalog, trail: tuple[str, ...]) -> tuple[Tree, Origins]:
    tree = dict(tree)
    bases = tree.pop("extends", [])
    merged: Tree = {}
    origins: Origins = {}
    for base in [bases] if isinstance(bases, str) else bases:
        if not isinstance(base, str):
            raise ConfigError(f"{origin}: extends holds {base!r}; it takes names of presets or YAML files")
        if base.endswith((".yaml", ".yml")) and not Path(base).is_absolute():
            base = str(folder / base)
        base_tree, base_origins = _load(base, catalog, trail)
        merged = _merge(merged, base_tree, _tags(merged, catalog))
        origins |= base_origins
    _lay_over(merged, origins, tree, origin, catalog)
    return merged, origins


def _lay_over(tree: Tree, origins: Origins, overlay: Tree, origin: str, catalog: Catalog) -> None:
    merged = _merge(tree, overlay, _tags(tree, catalog))
    tree.clear()
    tree.update(merged)
    for path in flatten(overlay):
        origins[path] = origin


def _merge(base: Any, overlay: Any, tags: Mapping[str, str], path: str = "") -> Any:
    """`overlay` over `base`, key by key; where it names another member of a union, it replaces the old member whole."""
    if not (isinstance(base, Mapping) and isinstance(overlay, Mapping)):
        return overlay
    tag = tags.get(path)
    if tag is not None and tag in overlay and overlay[tag] != base.get(tag):
        return dict(overlay)
    under = f"{path}." if path else ""
    return {**base, **{key: _merge(base.get(key), value, tags, under + key) for key, value in overlay.items()}}


def _tags(tree: Tree, catalog: Catalog) -> dict[str, str]:
    """Dotted path of each field that is a union of configs, to the name of the field that tells its members apart."""
    recipe = tree.get("recipe")
    return _union_tags(catalog.config_class(recipe)) if isinstance(recipe, str) else {}


def _union_tags(config_class: type[BaseModel], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, info in config_class.model_fields.items():
        members, path = config_classes_in(info.annotation), f"{prefix}{name}"
        if len(members) > 1:
            for field in set.intersection(*(set(member.model_fields) for member in members)):
                if all(len(get_args(member.model_fields[field].annotation)) == 1 for member in members):
                    found[path] = field
        for member in members:
            found |= _union_tags(member, f"{path}.")
    return found


def _nested(path: Sequence[str], value: Any) -> Tree:
    for part in reversed(path):
        value = {part: value}
    return value


def _origin_of(path: str, origins: Origins) -> str:
    """The origin of the longest given path that holds `path`, else it is the class's default."""
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return "default"


def _explain(error: Any, config_class: type[BaseModel], source: str) -> str:
    """One pydantic error as: what was given, what is wrong, what to do."""
    location = _without_union_tags(error["loc"], config_class)
    path = ".".join(map(str, location))
    parent, _, leaf = path.rpartition(".")
    given = error.get("input")
    if error["type"] == "extra_forbidden":
        known = fields_under(config_class)
        close = nearest(path, known)
        under = f" --under {parent}" if parent else ""
        advice = f"\n  closest: {close}" if close else ""
        return (
            f"{parent or 'the config'} has no field {leaf!r}\n  given:   {path}={_short(given)}{advice}\n"
            f"  all fields: pretrainkit config show {source}{under}"
        )
    if error["type"] == "missing":
        doc = fields_under(config_class).get(path, "")
        return f"{path} is missing\n  {doc}\n  give it: {path}=VALUE"
    message = error["msg"].removeprefix("Value error, ")
    if not path and isinstance(given, Mapping):
        words = " ".join(f"{name}={_short(value)}" for name, value in given.items())
        return f"{message}\n  given:   {words or 'nothing'}"
    doc = fields_under(config_class).get(path, "")
    return f"{path or 'the config'}: {message}\n  given:   {path}={_short(given)}" + (
        f"\n  meaning: {doc}" if doc else ""
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _without_union_tags(location: Sequence[Any], config_class: type[BaseModel]) -> list[Any]:
    """Pydantic puts the tag of a union's member into the location; the user never wrote it."""
    classes: list[type[BaseModel]] = [config_class]
    path: list[Any] = []
    for part in location:
        if isinstance(part, str) and path and not any(part in c.model_fields for c in classes):
            tags = {tag for c in classes for tag in _literals(c)} | {c.__name__ for c in classes}
            if part in tags:
                classes = [c for c in classes if part in _literals(c) or part == c.__name__]
                continue
        path.append(part)
        infos = [c.model_fields[part] for c in classes if part in c.model_fields]
        classes = [sub for info in infos for sub in config_classes_in(info.annotation)] or classes
    return path


def _literals(config_class: type[BaseModel]) -> set[str]:
    return {
        value
        for info in config_class.model_fields.values()
        for value in get_args(info.annotation)
        if isinstance(value, str)
    }


def nearest(path: str, known: Mapping[str, str]) -> str | None:
    """The known dotted path that `path` most likely meant: by spelling, place, and the words of the documentation."""
    parent, _, leaf = path.rpartition(".")
    words = set(re.findall(r"[a-z]{2,}", leaf.lower()))

    def score(candidate: str) -> float:
        other_parent, _, other_leaf = candidate.rpartition(".")
        spelling = difflib.SequenceMatcher(None, leaf, other_leaf).ratio()
        doc_words = set(re.findall(r"[a-z]{2,}", known[candidate].lower()))
        described = len(words & doc_words) / len(words) if words else 0.0
        named = len(words & set(other_leaf.split("_"))) / len(words) if words else 0.0
        return max(spelling, 0.9 * named, 0.8 * described) + (0.15 if other_parent == parent else 0.0)

    best = max(known, key=score, default=None)
    return best if best is not None and score(best) >= 0.6 else None
