"""The resolved config of every built-in preset, as checked in under configs/: a changed default shows in review."""

import json
from pathlib import Path

from pretrainkit.config.yaml import dump_yaml
from pretrainkit.recipes.registry import entries, find_recipe

FOLDER = Path(__file__).with_name("configs")


def presets() -> dict[str, str]:
    """File name to preset, for every preset of every recipe of this package."""
    ours = [entry.name for entry in entries().values() if entry.target.startswith("pretrainkit.")]  # no plugin's
    return {f"{recipe}-{name}.yaml": f"{recipe}/{name}" for recipe in ours for name in find_recipe(recipe).presets}


def resolved(preset: str) -> str:
    """Content of its file."""
    recipe, _, name = preset.partition("/")
    return f"# {preset}\n{dump_yaml(json.loads(find_recipe(recipe).presets[name]().model_dump_json()))}"


def write() -> None:
    """Make configs/ what the presets are now."""
    FOLDER.mkdir(exist_ok=True)
    wanted = presets()
    for path in FOLDER.glob("*.yaml"):
        if path.name not in wanted:
            path.unlink()
    for name, preset in wanted.items():
        (FOLDER / name).write_text(resolved(preset), encoding="utf-8")
