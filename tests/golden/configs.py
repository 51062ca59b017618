"""The resolved config of every built-in preset, as checked in under configs/: a changed default shows in review."""

import json
from pathlib import Path

from pretrainkit.config.yaml import dump_yaml
from pretrainkit.recipes.registry import entries, find_recipe

FOLDER = Path(__file__).with_name("configs")


def resolved() -> dict[str, str]:
    """File name to content, for every preset of every recipe of this package."""
    found = {}
    for entry in entries().values():
        if not entry.target.startswith("pretrainkit."):
            continue  # somebody's plugin that is installed here
        for name, make in find_recipe(entry.name).presets.items():
            tree = json.loads(make().model_dump_json())
            found[f"{entry.name}-{name}.yaml"] = f"# {entry.name}/{name}\n{dump_yaml(tree)}"
    return found


def write() -> None:
    """Make configs/ what the presets are now."""
    FOLDER.mkdir(exist_ok=True)
    wanted = resolved()
    for path in FOLDER.glob("*.yaml"):
        if path.name not in wanted:
            path.unlink()
    for name, content in wanted.items():
        (FOLDER / name).write_text(content, encoding="utf-8")
