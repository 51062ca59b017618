"""From a preset or YAML file and `path=value` words to a checked config that knows where each value came from.

A config source is a preset (`bert/tiny`), a YAML file, or a mapping. A YAML file holds a difference: `extends:` names
one preset or file, or several of which later ones win; the other keys are laid over that. Command-line words come last.
All problems are reported together.
"""

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from pretrainkit.config.base import DEFAULT, Config, Conflict, Unread, shown
from pretrainkit.config.explain import conflicts_in, explain, refused_in, unions_of
from pretrainkit.config.yaml import key_lines, parse_yaml
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
    """Dotted path of each leaf to 'preset bert/tiny', 'line 3 of file x.yaml', 'command line', or 'default'; where a
    value of a preset gave way, 'default, because optimizer.name was overridden (command line)'."""

    def notes(self) -> list[str]:
        """What gave way, a line each."""
        values = flatten(self.config.model_dump(mode="json"))
        return [f"note: {path}={shown(values[path])} ({why})" for path, why in self.origins.items() if "because" in why]


def resolve(
    source: str | Path | Mapping[str, Any], overrides: Iterable[str], catalog: Catalog, *, is_recorded: bool = False
) -> Resolved:
    """Build the config of `source` (preset, file or settings) with `overrides` (each `dotted.path=value`) on top.
    `is_recorded`: `source` is what a run recorded, every field of it: what nothing reads is no mistake there. Raises
    ConfigError (unknown preset or file, unknown keys, wrong types) with every problem found, each with its mend."""
    tree, origins = _load(source, catalog, ())
    problems: list[str] = []
    for word in overrides:
        try:
            path, value = parse_override(word)
        except ConfigError as error:
            problems += error.problems
            continue
        overlay: Tree = value
        for part in reversed(path):
            overlay = {part: overlay}
        _lay_over(tree, origins, overlay, dict.fromkeys(flatten(overlay), "command line"), catalog)
    recipe = tree.get("recipe")
    if not isinstance(recipe, str):
        raise ConfigError(
            [*problems, f"{source}: no recipe is named\n  add 'extends: RECIPE/PRESET' or 'recipe: NAME'"]
        )
    config_class = catalog.config_class(recipe)
    base = next((origin.removeprefix("preset ") for origin in origins.values() if origin.startswith("preset ")), None)

    def all_fields(parent: str) -> str:
        """A command that works whatever is wrong here: it shows the preset, or the schema."""
        if base is not None and (not parent or isinstance(_at(catalog.preset(base).model_dump(), parent), Mapping)):
            return f"pretrainkit config show {base}{f' --under {parent}' if parent else ''}"
        return f"pretrainkit config schema {recipe}"

    try:
        config = _settled(tree, origins, config_class, catalog, is_recorded)
    except ValidationError as error:
        found = explain(error, config_class, origin=lambda path: _place_of(path, origins), all_fields=all_fields)
        raise ConfigError(problems + found) from None
    if problems:
        raise ConfigError(problems)
    leaves = flatten(config.model_dump(mode="json"))
    return Resolved(config, {path: _origin_of(path, origins) for path in leaves})


_GAVE_WAY = ("default, because", "adjusted, because")
_MAPPING = "given mapping"


def _settled(tree: Tree, origins: Origins, config_class: type[C], catalog: Catalog, is_recorded: bool) -> C:
    """The config of `tree`. In a conflict, a value that no user wrote gives way to what a user wrote. Raises
    ValidationError where there is more to it than conflicts."""
    done = set()
    while True:
        error, config, conflicts = None, None, list[Conflict]()
        try:
            config = config_class.model_validate(tree)
            if isinstance(config, Config):
                conflicts = [*config.conflicts(), *_unsuited(config, origins, catalog)]
        except ValidationError as caught:
            error = caught
            conflicts = [_below(prefix, found.conflict) for prefix, found in conflicts_in(error, config_class)]
        has_changed = False
        for conflict in conflicts:
            for path, value in conflict.remedies:
                others = (_cause(other, origins) for other in conflict.settings if other != path)
                cause = next(filter(None, others), None)
                is_old = is_recorded and isinstance(conflict, Unread) and _origin_of(path, origins) == _MAPPING
                if path in done or not (is_old or (cause and not _is_written(path, origins))):
                    continue
                done.add(path)
                # A remedy that is itself refused is none: try it on a copy.
                changed = copy.deepcopy(tree)
                _put(changed, path.split("."), value)
                if path in _refused(changed, config_class):
                    continue
                has_changed = True
                _put(tree, path.split("."), value)
                if is_old:
                    continue
                assert cause is not None
                for leaf in [leaf for leaf in origins if f"{leaf}.".startswith(f"{path}.")]:
                    del origins[leaf]
                kind = "default" if value is DEFAULT else "adjusted"
                origins[path] = f"{kind}, because {cause} was overridden ({_origin_of(cause, origins)})"
                break
        if not has_changed:
            if error is not None:
                raise error
            assert config is not None
            return config


def _unsuited(config: Config, origins: Origins, catalog: Catalog) -> Iterator[Conflict]:
    """Values of presets that do not suit the config's choices."""
    for origin in sorted({origin for origin in origins.values() if origin.startswith("preset ")}):
        for conflict in config.unsuited(catalog.preset(origin.removeprefix("preset "))):
            if _origin_of(conflict.remedies[0][0], origins) == origin:
                yield conflict


def _refused(tree: Tree, config_class: type[BaseModel]) -> list[str]:
    """Dotted paths of values that cannot be, whatever the others are."""
    try:
        config_class.model_validate(tree)
    except ValidationError as error:
        return refused_in(error, config_class)
    return []


def _below(prefix: str, conflict: Conflict) -> Conflict:
    under = f"{prefix}." if prefix else ""
    remedies = [(under + path, value) for path, value in conflict.remedies]
    return Conflict(conflict, remedies, *(under + path for path in conflict.settings))


def with_origins(problem: str, origins: Origins) -> str:
    """The message of a conflict, with the places where its settings are written."""
    paths = dict.fromkeys(problem.settings if isinstance(problem, Conflict) else ())
    found = [f"{path} ({_place_of(path, origins)})" for path in paths if _is_written(path, origins)]
    return f"{problem}\n  written: {', '.join(found)}" if found else problem


def _place_of(path: str, origins: Origins) -> str:
    """The origin of a value, or of the first value of a part."""
    return _origin_of(next((leaf for leaf in origins if f"{leaf}.".startswith(f"{path}.")), path), origins)


def _cause(path: str, origins: Origins) -> str | None:
    """The setting of a user to which the value at `path` is due: this one, or the one for which it gave way."""
    if _is_written(path, origins):
        return path
    found = re.match(rf"(?:{'|'.join(_GAVE_WAY)}) (\S+) was overridden", _origin_of(path, origins))
    return None if found is None else found[1]


def _is_written(path: str, origins: Origins) -> bool:
    """True where a user wrote the setting, a part of it, or what holds it."""
    return any(
        not origin.startswith(("preset ", "default", *_GAVE_WAY))
        and (f"{leaf}.".startswith(f"{path}.") or f"{path}.".startswith(f"{leaf}."))
        for leaf, origin in origins.items()
    )


def _put(tree: Tree, path: Sequence[str], value: Any) -> None:
    *parents, leaf = path
    for part in parents:
        tree[part] = dict(tree.get(part) or {})
        tree = tree[part]
    if value is DEFAULT:
        tree.pop(leaf, None)
    else:
        tree[leaf] = value


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
    """A config without layers from the `NAME=VALUE` words of an option such as `--slurm`. Values are texts, but for
    lists [a, b], mappings {a: 1} and null. Raises ConfigError with every problem found."""
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
        found = explain(error, config_class)
        raise ConfigError(
            [f"{option}: {problem}" for problem in found[:-1]] + [f"{option}: {found[-1]}{fields}"]
        ) from None


def flatten(tree: Any) -> dict[str, Any]:
    """Nested mappings to {dotted path: leaf}; lists and empty mappings are leaves."""
    leaves: dict[str, Any] = {}

    def gather(path: str, below: Any) -> None:
        if below and isinstance(below, dict | Mapping):  # dict first: asking whether a value is a Mapping is slow
            for key, value in below.items():
                gather(f"{path}.{key}" if path else key, value)
        else:
            leaves[path] = below

    gather("", tree)
    return leaves


def _load(source: str | Path | Mapping[str, Any], catalog: Catalog, trail: tuple[str, ...]) -> tuple[Tree, Origins]:
    if isinstance(source, Mapping):
        return _extend(dict(source), _MAPPING, Path(), catalog, trail, {})
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
    return _extend(tree, f"file {name}", path.parent, catalog, (*trail, str(path.resolve())), key_lines(text))


def _extend(
    tree: Tree, origin: str, folder: Path, catalog: Catalog, trail: tuple[str, ...], lines: Mapping[str, int]
) -> tuple[Tree, Origins]:
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
        _lay_over(merged, origins, base_tree, base_origins, catalog)
    places = {path: f"line {lines[path]} of {origin}" if path in lines else origin for path in flatten(tree)}
    _lay_over(merged, origins, tree, places, catalog)
    return merged, origins


def _lay_over(tree: Tree, origins: Origins, overlay: Tree, overlay_origins: Origins, catalog: Catalog) -> None:
    """Put `overlay` over `tree`, key by key. In place.

    Where it names another member of a union, the fields of the old member go, but for those that a user wrote and that
    the new member has or that were not the default, and those without a default that both members have.
    """
    is_preset = all(origin.startswith("preset ") for origin in overlay_origins.values())
    recipe = tree.get("recipe")
    unions = unions_of(catalog.config_class(recipe)) if isinstance(recipe, str) else []
    for path, choice, members in unions:
        old, new = _at(tree, path), _at(overlay, path)
        if not isinstance(old, Mapping) or not isinstance(new, Mapping) or choice not in new:
            continue
        before, after = members.get(str(old.get(choice))), members.get(str(new[choice]))
        if before is None or after is None or before is after:
            continue
        kept = {} if is_preset else {n: v for n, v in old.items() if _stays(path, n, v, before, after, origins)}
        _put(tree, path.split("."), kept)
        for leaf in list(origins):
            if leaf.startswith(f"{path}.") and leaf.removeprefix(f"{path}.").partition(".")[0] not in kept:
                del origins[leaf]
        cause = f"{path}.{choice}"
        origins[path] = f"default, because {cause} was overridden ({_origin_of(cause, overlay_origins)})"
    merged = _merge(tree, overlay)
    tree.clear()
    tree.update(merged)
    origins |= overlay_origins


def _stays(path: str, name: str, value: Any, before: type[BaseModel], after: type[BaseModel], origins: Origins) -> bool:
    """True where a field of a union's old member is kept for the new one."""
    was, will = before.model_fields.get(name), after.model_fields.get(name)
    if _is_written(f"{path}.{name}", origins):
        usual = None if was is None else was.get_default(call_default_factory=True)
        return will is not None or value != usual
    if was is None or will is None:
        return False
    is_same = (was.annotation, was.metadata) == (will.annotation, will.metadata)
    return was.is_required() and will.is_required() and is_same


def _merge(base: Any, overlay: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(overlay, Mapping)):
        return overlay
    return {**base, **{key: _merge(base.get(key), value) for key, value in overlay.items()}}


def _at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def _origin_of(path: str, origins: Origins) -> str:
    """The origin of the longest given path that holds `path`, else it is the class's default."""
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return "default"
