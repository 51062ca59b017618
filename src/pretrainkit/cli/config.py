"""`pretrainkit config`."""

import shlex
import sys
from json import dumps
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from pretrainkit import api
from pretrainkit.config.docs import json_schema, to_commented_yaml
from pretrainkit.config.loader import flatten
from pretrainkit.config.yaml import dump_yaml
from pretrainkit.errors import ConfigError, InputError
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.running.configs import check_initial

app = typer.Typer(add_completion=False, no_args_is_help=True)

Source = Annotated[str, Argument(metavar="PRESET|FILE.yaml", help="A preset such as bert/tiny, or a YAML file.")]
Settings = Annotated[list[str] | None, Argument(metavar="PATH=VALUE", help="Settings to lay over it.")]


@app.command()
def show(
    source: Source,
    settings: Settings = None,
    under: Annotated[str | None, Option(help="Only this part, such as optimizer.")] = None,
    origins: Annotated[bool, Option("--origins", help="Say where each value comes from.")] = False,
    plain: Annotated[bool, Option("--plain", help="YAML without the documentation.")] = False,
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the resolved config with the documentation of every field, as YAML that `train` reads back."""
    resolved = api.resolve_config(source, settings or [])
    part, tree = resolved.config, resolved.config.model_dump(mode="json")
    for name in under.split(".") if under else []:
        if not isinstance(tree, dict) or name not in tree:
            raise ConfigError(
                f"{source} has no part {under!r}\n  parts: {', '.join(tree if isinstance(tree, dict) else [])}"
            )
        part, tree = getattr(part, name), tree[name]
    if json:
        print(dumps(tree, indent=2, ensure_ascii=False))
    elif origins:
        prefix = f"{under}." if under else ""
        for path, value in flatten(tree).items():
            print(f"{prefix + path:<40} {value!s:<24} {resolved.origins.get(prefix + path, '')}")
    elif plain or not isinstance(tree, dict):
        print(dump_yaml(tree).removesuffix("...\n"), end="")  # which ends a bare value
    else:
        print(to_commented_yaml(part), end="")


@app.command()
def check(
    source: Source,
    settings: Settings = None,
    nproc: Annotated[int, Option(min=1, help="Number of ranks that the config is for.")] = 1,
    json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a config without starting anything; reports every problem at once."""
    resolved = api.resolve_config(source, settings or [])
    api.check_config(resolved.config, nproc, resolved.origins)
    check_initial(resolved.config)
    if json:
        print(dumps({"source": source, "ranks": nproc, "notes": list(resolved.notes())}))
        return
    for note in resolved.notes():
        print(note)
    print(f"{source}: all right on {nproc} rank{'s' if nproc > 1 else ''}")


@app.command()
def schema(recipe: Annotated[str, Argument(help="Name of the recipe.")]) -> None:
    """Print the JSON schema of a recipe's YAML files, for editors."""
    print(dumps(json_schema(find_recipe(recipe).config_class), indent=2, ensure_ascii=False))


@app.command("import")
def import_file(
    file: Annotated[
        Path,
        Argument(
            metavar="FILE",
            help="A YAML file of ZeroVL (its clip or linear_prob task; recipe clip), a main or generation YAML file "
            "of 4M (fourm), a YAML file of 4M's tokenizers (image_tokenizer), or a gin file of T5X that trains, "
            "evaluates or infers (t5).",
        ),
    ],
    settings: Annotated[list[str] | None, Argument(metavar="KEY=VALUE", help="In that file's own keys.")] = None,
    recipe: Annotated[
        str | None, Option(help="Recipe that reads the file. Default: the one whose keys it has.")
    ] = None,
    nproc: Annotated[int, Option(min=1, help="Number of ranks that the config is for.")] = 1,
    out: Annotated[Path | None, Option(help="Write it here; default: print it.")] = None,
) -> None:
    """Turn a config file of the system a recipe succeeds into one of ours."""
    imported = api.import_config(file, recipe, settings or [], nproc)
    for note in imported.notes:
        print(f"note: {note}", file=sys.stderr)
    if words := list(imported.weights_command):
        words += [] if imported.config is None else ["--config", str(out or "FILE.yaml")]
        reading = shlex.join(("pretrainkit", *words))
        print(f"note: it starts from the weights that this command reads: {reading}", file=sys.stderr)
    if imported.without_effect:
        number = len(imported.without_effect)
        keys = "1 key changes" if number == 1 else f"{number} keys change"
        print(f"note: {keys} nothing here: {', '.join(imported.without_effect)}", file=sys.stderr)
    if imported.config is None:
        same = shlex.join(("pretrainkit", *imported.command))
        print(f"{file} needs no config here; the same is done by:\n  {same}")
        return
    config = imported.config
    api.check_config(config, nproc)
    text = to_commented_yaml(config)
    if out is None:
        print(text, end="")
        return
    try:
        with open(out, "x", encoding="utf-8") as target:
            target.write(text)
    except OSError as error:
        raise InputError(f"cannot write {out}\n  {error}\n  give a new file in a folder that exists") from None
    print(f"{out}\n  train it with: pretrainkit train {out} --out FOLDER")
