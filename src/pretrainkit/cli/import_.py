"""`pretrainkit import`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import Json, print_path
from pretrainkit.errors import InputError

if TYPE_CHECKING:
    from pretrainkit.recipes.exchange import ImportedModel


def import_(
    path: Annotated[
        Path, Argument(help="A folder of transformers or Sabertooth, what --format names, or hf-hub:NAME[@REVISION].")
    ],
    out: Annotated[Path | None, Option(help="New folder to write.")] = None,
    recipe: Annotated[
        str | None, Option(help="Recipe of the model. Default: the one that its files belong to.")
    ] = None,
    format: Annotated[
        str,
        Option(
            help="huggingface, or the system that wrote it: openclip, openai, zerovl (recipe clip), t5x, mesh_tf (t5), "
            "4m (fourm), 4m-tokenizer (image_tokenizer)."
        ),
    ] = "huggingface",
    config: Annotated[
        str | None, Option(help="Preset or YAML file with the architecture of a file that does not state it.")
    ] = None,
    tokenizer: Annotated[Path | None, Option(help="Folder of the model's tokenizer, to keep a copy of.")] = None,
    pooling: Annotated[
        str | None,
        Option(help="Pooling of a classifier whose files do not state it: mean or max (recipe glue)."),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Read and check what --format names, show every tensor; write nothing.")
    ] = False,
    check: Annotated[
        bool, Option("--check", help="Compare with transformers on random inputs afterwards (recipe t5).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read a model of another library into ours, for `init_from=`, `evaluate` and `generate`."""
    if dry_run:
        _show(api.read_foreign_model(path, recipe, format=format, config=config), as_json)
        return
    if out is None:
        raise InputError("there is no place for the model\n  give --out FOLDER, or --dry-run to write nothing")
    written = api.import_model(path, recipe, out, format=format, config=config, tokenizer=tokenizer, pooling=pooling)
    difference = api.difference_from_huggingface(out) if check else None
    print_path(written, as_json, difference=difference)
    if difference is not None and not as_json:
        print(f"random inputs: the outputs differ from those of transformers by {difference:.1e} at most")


def _show(found: ImportedModel, as_json: bool) -> None:
    """Print a line for each tensor, with its name there, its name here and its shape, and then the architecture."""
    if as_json:
        tensors = {
            ours: {"name": theirs, "shape": list(found.state[ours].shape)} for ours, theirs in found.names.items()
        }
        model = found.config.model_dump(mode="json")["model"]
        print(json.dumps({"tensors": tensors, "step": found.step, "model": model}))
        return
    width = max((len(name) for name in found.names.values()), default=0)
    for ours, theirs in found.names.items():
        print(f"{theirs:{width}}  {ours} {list(found.state[ours].shape)}")
    num = sum(tensor.numel() for tensor in found.state.values())
    print(f"{len(found.state)} tensors, {num:,} parameters" + (f", step {found.step:,}" if found.step else ""))
    for name, value in found.config.model_dump(mode="json")["model"].items():
        print(f"model.{name}={value}")
