"""`pretrainkit config`: show, check, import and document configs."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import ConfigSource, Json, print_json
from pretrainkit.config.base import shown
from pretrainkit.config.docs import json_schema, to_commented_yaml
from pretrainkit.config.loader import ABSENT, difference, flatten
from pretrainkit.config.yaml import dump_yaml
from pretrainkit.errors import ConfigError, InputError
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.running.configs import check_initial, config_values

app = typer.Typer(add_completion=False, no_args_is_help=True)

Settings = Annotated[
    list[str] | None, Argument(metavar="PATH=VALUE", help="Settings that override it, such as data.batch_size=64.")
]


@app.command()
def show(
    source: ConfigSource,
    settings: Settings = None,
    under: Annotated[str | None, Option(help="Show only this part, such as optimizer.")] = None,
    origins: Annotated[
        bool, Option("--origins", help="Show the origin of each value: preset, file or command line.")
    ] = False,
    plain: Annotated[bool, Option("--plain", help="Print YAML without the documentation.")] = False,
    json: Json = False,
) -> None:
    """Print the resolved config as YAML, with the documentation of every field. `train` reads this YAML."""
    resolved = api.resolve_config(source, settings or [])
    part, tree = resolved.config, resolved.config.model_dump(mode="json")
    for name in under.split(".") if under else []:
        if not isinstance(tree, dict) or name not in tree:
            raise ConfigError(
                f"{source} has no part {under!r}\n  parts: {', '.join(tree if isinstance(tree, dict) else [])}"
            )
        part, tree = getattr(part, name), tree[name]
    if json:
        print_json(tree, indent=2)
    elif origins:
        prefix = f"{under}." if under else ""
        for path, value in flatten(tree).items():
            print(f"{prefix + path:<40} {value!s:<24} {resolved.origins.get(prefix + path, '')}")
    elif plain or not isinstance(tree, dict):
        print(dump_yaml(tree).removesuffix("...\n"), end="")  # the end mark after a single value
    else:
        print(to_commented_yaml(part), end="")


@app.command()
def check(
    source: ConfigSource,
    settings: Settings = None,
    nproc: Annotated[int, Option(min=1, help="Number of ranks of the run.")] = 1,
    json: Json = False,
) -> None:
    """Check a config without starting a run. All problems are reported at once."""
    resolved = api.resolve_config(source, settings or [])
    api.check_config(resolved.config, nproc, resolved.origins)
    check_initial(resolved.config)
    if json:
        print_json({"source": source, "ranks": nproc, "notes": list(resolved.notes())})
        return
    for note in resolved.notes():
        print(note)
    print(f"{source}: valid on {nproc} rank{'s' if nproc > 1 else ''}")


@app.command()
def diff(
    first: Annotated[str, Argument(metavar="A", help="A preset, a YAML file, or a run folder.")],
    second: Annotated[str, Argument(metavar="B", help="Another one.")],
    json: Json = False,
) -> None:
    """Print the settings in which two configs differ."""
    differences = difference([config_values(source) for source in (first, second)])
    if json:
        absent = {path: [None if value is ABSENT else value for value in pair] for path, pair in differences.items()}
        print_json(absent, indent=2)
        return
    rows = [
        (path, *(value if value is ABSENT else shown(value) for value in pair)) for path, pair in differences.items()
    ]
    widths = [max(len(row[column]) for row in [("", first, second), *rows]) for column in range(3)]
    for row in [("", first, second), *rows] if rows else []:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    if not rows:
        print("the configs are equal")


@app.command()
def schema(recipe: Annotated[str, Argument(help="Name of the recipe.")], json: Json = False) -> None:
    """Print the JSON schema of a recipe's YAML files, for editors that check them. It is JSON with or without
    --json."""
    print_json(json_schema(find_recipe(recipe).config_class), indent=2)


@app.command("import")
def import_file(
    file: Annotated[
        Path,
        Argument(
            metavar="FILE",
            help="A YAML file of ZeroVL (its tasks clip and linear_prob; recipe clip), a YAML file of 4M for training "
            "or generation (fourm), a YAML file of 4M's tokenizers (image_tokenizer), or a gin file of T5X for "
            "training, evaluation or inference (t5).",
        ),
    ],
    settings: Annotated[
        list[str] | None, Argument(metavar="KEY=VALUE", help="Overrides with the keys of that file.")
    ] = None,
    recipe: Annotated[str | None, Option(help="Recipe that reads the file. Default: detect it from the keys.")] = None,
    nproc: Annotated[int, Option(min=1, help="Number of ranks of the run.")] = 1,
    out: Annotated[Path | None, Option(help="New YAML file to write. Default: print the config.")] = None,
    json: Json = False,
) -> None:
    """Convert a config file of another system to a config of ours."""
    imported = api.import_config(file, recipe, settings or [], nproc)
    for note in imported.notes:
        print(f"note: {note}", file=sys.stderr)
    if words := list(imported.weights_command):
        words += [] if imported.config is None else ["--config", str(out or "FILE.yaml")]
        reading = shlex.join(("pretrainkit", *words))
        print(f"note: the run starts from weights that this command imports: {reading}", file=sys.stderr)
    if imported.without_effect:
        number = len(imported.without_effect)
        keys = "1 key has" if number == 1 else f"{number} keys have"
        print(f"note: {keys} no effect here: {', '.join(imported.without_effect)}", file=sys.stderr)
    config, text, written = imported.config, "", None
    if config is not None:
        api.check_config(config, nproc)
        text = to_commented_yaml(config)
        if out is not None:
            try:
                with open(out, "x", encoding="utf-8") as target:
                    target.write(text)
            except OSError as error:
                raise InputError(f"cannot write {out}\n  {error}\n  give a new file in an existing folder") from None
            written = str(out)
    if json:
        answer = {name: getattr(imported, name) for name in ("command", "weights_command", "without_effect", "notes")}
        values = None if config is None else config.model_dump(mode="json")
        print_json({"out": written, "config": values, **answer})
    elif config is None:
        same = shlex.join(("pretrainkit", *imported.command))
        print(f"{file} needs no config here; the equivalent command is:\n  {same}")
    elif written is not None:
        print(f"{out}\n  train it with: pretrainkit train {shlex.quote(written)} --out FOLDER")
    else:
        print(text.removesuffix("\n"))
