"""Registry of recipes: built-in ones by folder, third-party ones by the entry-point group `pretrainkit.recipes`.

A recipe that cannot be imported is listed as broken and raises an error when used.
"""

import difflib
import importlib
import importlib.metadata
import os
import pkgutil
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from pydantic import BaseModel

import pretrainkit.recipes
from pretrainkit.errors import ConfigError, DataError, InputError
from pretrainkit.recipes.capabilities import Capability
from pretrainkit.recipes.exchange import ReadsHuggingFace
from pretrainkit.recipes.recipe import Recipe

GROUP = "pretrainkit.recipes"
C = TypeVar("C", bound=Capability[Any])


@dataclass(frozen=True)
class Entry:
    """Registered recipe."""

    name: str
    target: str
    """`module:attribute` of a `Recipe` instance."""
    rival: str = ""
    """Target of another recipe with the same name."""

    def load(self) -> Recipe[Any]:
        """Import the recipe. Raises ConfigError if its module is broken or two recipes have this name."""
        if self.rival:
            raise ConfigError(
                f"two recipes are called {self.name!r}: {self.target} and {self.rival}\n  uninstall one of them"
            )
        module, _, attribute = self.target.partition(":")
        try:
            recipe = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # a plugin may fail in any way; it is reported, with the cause attached
            raise ConfigError(
                f"recipe {self.name!r} ({self.target}) is broken\n  {type(error).__name__}: {error}\n"
                "  repair or uninstall the package that provides it"
            ) from error
        if not isinstance(recipe, Recipe):
            raise ConfigError(
                f"recipe {self.name!r} ({self.target}) is a {type(recipe).__name__}, not a Recipe\n"
                "  MODULE:ATTRIBUTE must name an instance of a subclass of pretrainkit.recipes.recipe.Recipe"
            )
        return recipe


@cache
def entries() -> dict[str, Entry]:
    """Return all recipes by name. Two recipes with one name are an error only when that name is used."""
    by_name = {
        info.name: Entry(info.name, f"pretrainkit.recipes.{info.name}.recipe:RECIPE")
        for info in pkgutil.iter_modules(pretrainkit.recipes.__path__)
        if info.ispkg
    }
    for point in importlib.metadata.entry_points(group=GROUP):
        known = by_name.get(point.name)
        by_name[point.name] = replace(known, rival=point.value) if known else Entry(point.name, point.value)
    return by_name


def find_recipe(name: str) -> Recipe[Any]:
    """Return the recipe `name` or `module:attribute`. Raises ConfigError with the known names."""
    if ":" in name:
        return Entry(name, name).load()
    known = entries()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"there is no recipe {name!r}{hint}\n  recipes: {', '.join(sorted(known))}")
    return known[name].load()


def sound_recipes() -> dict[str, Recipe[Any]]:
    """Return all recipes that can be imported, by name; `find_recipe` raises an error for the others."""
    recipes = {}
    for name, entry in entries().items():
        with suppress(ConfigError):
            recipes[name] = entry.load()
    return recipes


def recipes_able(capability: type[C]) -> dict[str, C]:
    """Return all recipes with a capability, by name."""
    recipes: dict[str, Any] = sound_recipes()
    return {name: recipe for name, recipe in recipes.items() if isinstance(recipe, capability)}


def first_able(capability: type[C]) -> C:
    """Return the first recipe with a capability, for commands that only one recipe implements."""
    return next(iter(recipes_able(capability).values()))


def able(recipe: Recipe[Any], capability: type[C]) -> C:
    """Return the recipe, typed as a capability. Raises InputError, which lists the recipes with the capability."""
    if isinstance(recipe, capability):
        return recipe
    advice = [capability.instead, f"recipes with this capability: {', '.join(recipes_able(capability)) or 'none'}"]
    raise InputError("\n  ".join([f"recipe {recipe.name!r} cannot {capability.does}", *filter(None, advice)]))


def recipe_of_huggingface(model_type: str | None, origin: str) -> str:
    """Return the recipe that reads folders of transformers with this `model_type` (None: without one). Raises DataError
    if there is no such recipe; `origin` is the folder."""
    recipes = recipes_able(ReadsHuggingFace)
    for name, recipe in recipes.items():
        if model_type in recipe.huggingface_types or (model_type is None and recipe.reads_unnamed_huggingface):
            return name
    others = (name for name, recipe in recipes.items() if recipe.reads_other_huggingface)
    if model_type is not None and (other := next(others, None)):
        return other
    raise DataError(f"{origin}/config.json has model_type {model_type!r}, which no recipe reads")


class Recipes:
    """Catalog of presets and config classes for `config.loader`."""

    def preset(self, name: str) -> BaseModel:
        recipe_name, _, preset_name = name.rpartition("/")
        if recipe_name not in entries() and os.path.isfile(Path(name) / "config.yaml"):
            raise ConfigError(
                f"{name} is a run, not a preset\n  to resume it: pretrainkit resume {quote(name)}; to start a new run "
                f"with its settings: pretrainkit train {quote(f'{name}/config.yaml')}"
            )
        if not recipe_name:
            every = {
                f"{r}/{p}".replace("/", "-"): f"{r}/{p}" for r, known in sound_recipes().items() for p in known.presets
            }
            near = "".join(f"; did you mean {every[close]}?" for close in difflib.get_close_matches(name, every, n=1))
            raise ConfigError(
                f"there is no preset {name!r}{near}\n"
                "  presets are written recipe/preset, like bert/tiny; files end in yaml\n"
                "  all presets: pretrainkit recipes"
            )
        recipe = find_recipe(recipe_name)
        if preset_name not in recipe.presets:
            close: Any = [preset for preset in recipe.presets if preset.endswith(f"-{preset_name}")][:3]
            close = close or difflib.get_close_matches(preset_name, recipe.presets, n=1)
            hint = f"; did you mean {' or '.join(f'{recipe_name}/{preset}' for preset in close)}?" if close else ""
            raise ConfigError(
                f"recipe {recipe_name!r} has no preset {preset_name!r}{hint}\n  presets: {', '.join(recipe.presets)}"
            )
        return recipe.presets[preset_name]()

    def config_class(self, recipe: str) -> type[BaseModel]:
        return find_recipe(recipe).config_class
