"""Loading of configs: a preset or YAML file and `path=value` overrides become a validated config with origins.

A config source is a preset (`bert/tiny`), a YAML file, or a mapping. In a YAML file, `extends:` lists one or several
presets or files; later ones override earlier ones, and the other keys override all of them. Command-line overrides are
applied last. All problems are reported together.
"""

import copy
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from pretrainkit.config.base import DEFAULT, Config, Conflict, Unread, shown
from pretrainkit.config.explain import conflicts_in, explain, refused_in, unions_of
from pretrainkit.config.paths import moved_paths, record_beside
from pretrainkit.config.yaml import MAX_DEPTH, key_lines, parse_yaml, read_text
from pretrainkit.errors import ConfigError

Tree = dict[str, Any]
Origins = dict[str, str]
C = TypeVar("C", bound=BaseModel)


class Catalog(Protocol):
    """Source of presets and config classes; implemented by the recipes."""

    def preset(self, name: str) -> BaseModel:
        """Return the config of a preset. Raises ConfigError, with the nearest names, for an unknown name."""

    def config_class(self, recipe: str) -> type[BaseModel]:
        """Return the config class of a recipe. Raises ConfigError, with the known recipes, for an unknown name."""


@dataclass(frozen=True)
class Resolved:
    """Validated config with the origin of each value."""

    config: Any
    origins: Origins
    """Maps the dotted path of each leaf to its origin: 'preset bert/tiny', 'line 3 of file x.yaml', 'command line', or
    'default'; if a preset's value was replaced, 'default, because optimizer.name was overridden (command line)'."""

    def notes(self) -> list[str]:
        """Return one line for each value that was changed to resolve a conflict."""
        values = flatten(self.config.model_dump(mode="json"))
        return [f"note: {path}={shown(values[path])} ({why})" for path, why in self.origins.items() if "because" in why]


def resolve(
    source: str | Path | Mapping[str, Any], overrides: Iterable[str], catalog: Catalog, *, is_recorded: bool = False
) -> Resolved:
    """Build the config of `source` (preset, file or mapping) and apply `overrides` (each `dotted.path=value`).

    With `is_recorded`, `source` is the complete config of a run, in which fields without effect are allowed. Raises
    ConfigError (unknown preset or file, unknown keys, wrong types) with every problem and how to fix each."""
    tree, origins = _load(source, catalog, ())
    problems: list[str] = []
    for override in overrides:
        try:
            path, value = parse_override(override)
        except ConfigError as error:
            problems += error.problems
            continue
        overlay = nested({".".join(path): value})
        _lay_over(tree, origins, overlay, dict.fromkeys(flatten(overlay), "command line"), catalog)
    recipe = tree.get("recipe")
    if not isinstance(recipe, str):
        raise ConfigError(
            [*problems, f"{source}: no recipe is named\n  add 'extends: RECIPE/PRESET' or 'recipe: NAME'"]
        )
    config_class = catalog.config_class(recipe)
    base = next((origin.removeprefix("preset ") for origin in origins.values() if origin.startswith("preset ")), None)

    def all_fields(parent: str) -> str:
        """Return a command that shows the preset or the schema, and so works even though this config is invalid."""
        if base is not None and (not parent or isinstance(_at(catalog.preset(base).model_dump(), parent), Mapping)):
            return f"pretrainkit config show {base}{f' --under {parent}' if parent else ''}"
        return f"pretrainkit config schema {recipe}"

    try:
        config = _settled(tree, origins, config_class, catalog, is_recorded)
    except ValidationError as error:
        problems += explain(error, config_class, origin=lambda path: _place_of(path, origins), all_fields=all_fields)
        raise ConfigError(problems) from None
    if problems:
        raise ConfigError(problems)
    leaves = flatten(config.model_dump(mode="json"))
    return Resolved(config, {path: origin_of(path, origins) for path in leaves})


_GAVE_WAY = ("default, because", "adjusted, because")
_MAPPING = "given mapping"


def _settled(tree: Tree, origins: Origins, config_class: type[C], catalog: Catalog, is_recorded: bool) -> C:
    """Return the config of `tree`, after resolving conflicts by changing values that no user wrote. Raises
    ValidationError if problems remain."""
    done = set()
    while True:
        error, config, conflicts = None, None, list[Conflict]()
        try:
            config = config_class.model_validate(tree)
            if isinstance(config, Config):
                conflicts = [*config.conflicts(), *_unsuited(config, origins, catalog)]
        except ValidationError as caught:
            error = caught
            conflicts = [_below(prefix, cause.conflict) for prefix, cause in conflicts_in(error, config_class)]
        has_changed = False
        for conflict in conflicts:
            for path, value in conflict.remedies:
                others = (_cause(other, origins) for other in conflict.settings if other != path)
                cause = next(filter(None, others), None)
                is_old = is_recorded and isinstance(conflict, Unread) and origin_of(path, origins) == _MAPPING
                if path in done or not (is_old or (cause and not _is_written(path, origins))):
                    continue
                done.add(path)
                # A remedy may itself be invalid, so try it on a copy.
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
                origins[path] = f"{kind}, because {cause} was overridden ({origin_of(cause, origins)})"
                break
        if not has_changed:
            if error is not None:
                raise error
            assert config is not None
            return config


def _unsuited(config: Config, origins: Origins, catalog: Catalog) -> Iterator[Conflict]:
    """Yield a conflict for each preset value that does not suit the config's choices."""
    for origin in sorted({origin for origin in origins.values() if origin.startswith("preset ")}):
        for conflict in config.unsuited(catalog.preset(origin.removeprefix("preset "))):
            if origin_of(conflict.remedies[0][0], origins) == origin:
                yield conflict


def _refused(tree: Tree, config_class: type[BaseModel]) -> list[str]:
    """List dotted paths of values that are invalid regardless of the other values."""
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
    """Append to the message of a conflict the places where its settings are written."""
    paths = dict.fromkeys(problem.settings if isinstance(problem, Conflict) else ())
    places = [f"{path} ({_place_of(path, origins)})" for path in paths if _is_written(path, origins)]
    return f"{problem}\n  written: {', '.join(places)}" if places else problem


def _place_of(path: str, origins: Origins) -> str:
    """Return the origin of a value, or of the first value inside a nested config."""
    return origin_of(next((leaf for leaf in origins if f"{leaf}.".startswith(f"{path}.")), path), origins)


def _cause(path: str, origins: Origins) -> str | None:
    """Return the user's setting that determined the value at `path`: `path` itself, or the cause of its change."""
    if _is_written(path, origins):
        return path
    match = re.match(rf"(?:{'|'.join(_GAVE_WAY)}) (\S+) was overridden", origin_of(path, origins))
    return None if match is None else match[1]


def _is_written(path: str, origins: Origins) -> bool:
    """True if a user wrote the setting, a part of it, or a config that contains it."""
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


def parse_override(override: str) -> tuple[list[str], Any]:
    """Parse 'a.b=1e-4' to (['a', 'b'], 0.0001). The value is YAML; invalid YAML is used as plain text."""
    path, equals, text = override.partition("=")
    parts = path.strip().split(".")
    if any("\ud800" <= character <= "\udfff" for character in override):  # Python's form of bytes that are not UTF-8
        raise ConfigError(f"cannot read {override!r}: it is not UTF-8\n  type it again, or set a locale with UTF-8")
    if not equals or not all(re.fullmatch(r"\w+", part) for part in parts):
        raise ConfigError(
            f"cannot read {override!r}\n  write settings as dotted.path=value, such as optimizer.peak_lr=1e-4"
        )
    if len(parts) > MAX_DEPTH:
        raise ConfigError(
            f"{override[:40]!r}... names {len(parts)} nested values\n  no config has more than {MAX_DEPTH}"
        )
    try:
        return parts, parse_yaml(text, override)
    except ConfigError:
        return parts, text


def config_from_overrides(config_class: type[C], overrides: Iterable[str], option: str) -> C:
    """Build a flat config from the `NAME=VALUE` arguments of an option such as `--slurm`. Values are strings, except
    lists [a, b], mappings {a: 1} and null. Raises ConfigError with every problem."""
    tree: Tree = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"cannot read {option} {override!r}\n  write it like {option} NAME=VALUE")
        tree[name.strip()] = parse_yaml(text, override) if text.startswith(("[", "{")) or text == "null" else text
    try:
        return config_class.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{option}: {problem}" for problem in explain(error, config_class)) from None


def flatten(tree: Any) -> dict[str, Any]:
    """Flatten nested mappings to {dotted path: leaf}; lists and empty mappings are leaves."""
    leaves: dict[str, Any] = {}

    def gather(path: str, below: Any) -> None:
        if below and isinstance(below, dict | Mapping):  # dict first: asking whether a value is a Mapping is slow
            for key, value in below.items():
                gather(f"{path}.{key}" if path else key, value)
        else:
            leaves[path] = below

    gather("", tree)
    return leaves


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested dicts of {dotted path: leaf}."""
    tree: dict[str, Any] = {}
    for path, value in leaves.items():
        *parents, name = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


ABSENT = "–"
"""Marks a setting that a config does not have."""


def difference(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Map the dotted path of each setting that differs to its values in the configs, `ABSENT` if a config has none."""
    leaves = [flatten(dict(config)) for config in configs]
    paths = dict.fromkeys(path for own in leaves for path in own)
    values = {path: [own.get(path, ABSENT) for own in leaves] for path in paths}
    return {path: own for path, own in values.items() if any(value != own[0] for value in own)}


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
    if not os.path.exists(path):  # False also for names that no file can have
        raise ConfigError(f"there is no config file {name}\n  to list all presets: pretrainkit recipes")
    text = read_text(path)
    tree = parse_yaml(text, name)
    if not isinstance(tree, dict):
        raise ConfigError(f"{name} does not contain a mapping of settings\n  write a line NAME: VALUE for each setting")
    record = record_beside(path)
    tree = moved_paths(tree, record.get("folder"), path.parent)
    merged, origins = _extend(
        tree, f"file {name}", path.parent, catalog, (*trail, str(path.resolve())), key_lines(text)
    )
    return merged, origins | _kept_origins(merged, record, catalog)


def _kept_origins(tree: Tree, record: Mapping[str, Any], catalog: Catalog) -> Origins:
    """Return the origins of those values of a recorded config that are still the values of a preset."""
    sources, leaves = record.get("sources"), flatten(tree)
    origins: Origins = {}
    if not isinstance(sources, Mapping):
        return origins
    texts = {origin for origin in sources.values() if isinstance(origin, str)}
    for origin in {origin for origin in texts if origin.startswith("preset ")}:
        with suppress(ConfigError):  # the preset no longer exists
            values = flatten(catalog.preset(origin.removeprefix("preset ")).model_dump(mode="json"))
            same = (
                path for path, own in sources.items() if own == origin and leaves.get(path, ABSENT) == values.get(path)
            )
            origins |= dict.fromkeys(same, origin)
    return origins


def _extend(
    tree: Tree, origin: str, folder: Path, catalog: Catalog, trail: tuple[str, ...], lines: Mapping[str, int]
) -> tuple[Tree, Origins]:
    tree = dict(tree)
    bases = tree.pop("extends", [])
    merged: Tree = {}
    origins: Origins = {}
    for base in bases if isinstance(bases, list | tuple) else [bases]:
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
    """Merge `overlay` into `tree` in place; values of `overlay` win.

    If a preset selects another member of a union, all fields of the old member are dropped. If a user selects it, some
    are kept: required fields that both members have, and fields that a user wrote, unless the new member lacks them and
    they have their default.
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
        origins[path] = f"default, because {cause} was overridden ({origin_of(cause, overlay_origins)})"
    merged = _merge(tree, overlay)
    tree.clear()
    tree.update(merged)
    origins |= overlay_origins


def _stays(path: str, name: str, value: Any, before: type[BaseModel], after: type[BaseModel], origins: Origins) -> bool:
    """True if a field of a union's old member is kept for the new one."""
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


def origin_of(path: str, origins: Origins, default: str = "default") -> str:
    """Return the origin of the longest known path that contains `path`, or `default`."""
    while path:
        if path in origins:
            return origins[path]
        path = path.rpartition(".")[0]
    return default
