"""Resolving configs with all available recipes, and checking them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from pretrainkit.config.loader import Origins, Resolved, resolve, with_origins
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.exchange import ReadsFiles
from pretrainkit.recipes.registry import Recipes, find_recipe
from pretrainkit.training.folder import RunFolder
from pretrainkit.training.run import RunConfig


def resolve_config(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Resolved:
    """Return the config of a preset, YAML file or mapping with `path=value` overrides, and the source of each value.
    Raises ConfigError with every problem."""
    return resolve(source, overrides, Recipes())


def recorded_config(tree: Mapping[str, Any], overrides: Iterable[str] = ()) -> Resolved:
    """Resolve a recorded config like `resolve_config`, but reset unread settings to their defaults instead of
    failing."""
    return resolve(tree, overrides, Recipes(), is_recorded=True)


def load_config(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Any:
    """Return only the config of `resolve_config`: `load_config("bert/tiny", ["data.batch_size=64"])`."""
    return resolve_config(source, overrides).config


def config_values(source: str | Path) -> dict[str, Any]:
    """Return the values of a preset, a YAML file or a run folder as nested plain values, for a comparison. Raises
    ConfigError or DataError if there is no such config."""
    if Path(source).is_dir():
        return RunFolder(source).config_tree()
    values: dict[str, Any] = resolve_config(source).config.model_dump(mode="json")
    return values


def check_initial(config: RunConfig) -> None:
    """Raise DataError if the initial weights do not exist or are in a file of another system."""
    if config.init_from is None or Path(config.init_from).is_dir():
        return
    recipe = find_recipe(config.recipe)
    if not Path(config.init_from).is_file() or not isinstance(recipe, ReadsFiles):
        raise DataError(
            f"init_from={config.init_from}: there is no such folder\n"
            "  set it to a run, a checkpoint (RUN/checkpoints/step-…) or an export; pretrainkit import reads files of "
            "other systems"
        )
    raise DataError(
        f"init_from={config.init_from} is a file, not a run, a checkpoint or an export of pretrainkit\n"
        f"  import it first: pretrainkit import {quote(config.init_from)} --recipe {config.recipe} "
        f"--format {recipe.file_formats[0]} --out WEIGHTS\n"
        "  and then set init_from=WEIGHTS"
    )


def check_config(config: RunConfig, world_size: int = 1, origins: Origins | None = None) -> None:
    """Raise ConfigError, with all problems, if settings cannot work together on `world_size` ranks. With `origins` from
    `resolve_config`, the message says where these settings come from."""
    if problems := config.problems(world_size):
        raise ConfigError([with_origins(problem, origins or {}) for problem in problems])
