"""`pretrainkit recipes`."""

from inspect import getdoc

from pretrainkit.cli.options import Json, print_json
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.registry import entries


def recipes(json: Json = False) -> None:
    """List the recipes and their presets."""
    from typing import Any

    rows: list[dict[str, Any]] = []
    for entry in entries().values():
        try:
            recipe = entry.load()
        except ConfigError as error:
            rows.append({"recipe": entry.name, "broken": str(error)})
            continue
        presets = {
            f"{entry.name}/{name}": " ".join((getdoc(make) or "").partition("\n\n")[0].split())
            for name, make in recipe.presets.items()
        }
        rows.append({"recipe": entry.name, "summary": recipe.summary, "presets": presets})
    if json:
        print_json(rows, indent=2)
        return
    for row in rows:
        print(f"{row['recipe']}: {row.get('summary', 'BROKEN')}")
        if "broken" in row:
            print(f"  {row['broken']}")
        presets = row.get("presets", {})
        for name, line in presets.items():
            print(f"  {name:<{max(map(len, presets))}}  {line}")
