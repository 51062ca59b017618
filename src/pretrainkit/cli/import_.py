"""`pretrainkit import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import Json, print_json, print_path
from pretrainkit.errors import InputError

if TYPE_CHECKING:
    from pretrainkit.recipes.exchange import ImportedModel


def import_(
    path: Annotated[
        Path,
        Argument(
            help="A folder of transformers or Sabertooth, a model in the format --format, or hf-hub:NAME[@REVISION]."
        ),
    ],
    out: Annotated[Path | None, Option(help="New folder to write.")] = None,
    recipe: Annotated[str | None, Option(help="Recipe of the model. Default: detect it from the files.")] = None,
    format: Annotated[
        str,
        Option(
            help="huggingface, or the system that wrote the model: openclip, openai, zerovl (recipe clip), t5x, "
            "mesh_tf (t5), 4m (fourm), 4m-tokenizer (image_tokenizer)."
        ),
    ] = "huggingface",
    config: Annotated[
        str | None, Option(help="Preset or YAML file with the architecture, for files that do not state it.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        Option(help="Folder of the model's tokenizer, which is copied to OUT; for a ByT5 (recipe t5) also bytes."),
    ] = None,
    pooling: Annotated[
        str | None,
        Option(help="Pooling of a classifier (recipe glue) whose files do not state it: mean, max or pma_padded:K."),
    ] = None,
    dry_run: Annotated[
        bool,
        Option("--dry-run", help="Read and check a model of another --format, print every tensor, and write nothing."),
    ] = False,
    check: Annotated[
        bool,
        Option("--check", help="Then compare the outputs with those of transformers on random inputs (recipe t5)."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Convert a model of another library to our format, for `init_from=`, `evaluate` and `generate`."""
    if dry_run:
        _show(api.read_foreign_model(path, recipe, format=format, config=config), as_json)
        return
    if out is None:
        raise InputError("no output folder is given\n  add --out FOLDER, or --dry-run to write nothing")
    written = api.import_model(path, recipe, out, format=format, config=config, tokenizer=tokenizer, pooling=pooling)
    difference = api.difference_from_huggingface(out) if check else None
    print_path(written, as_json, difference=difference)
    if difference is not None and not as_json:
        print(f"on random inputs, the outputs differ from those of transformers by at most {difference:.1e}")


def _show(imported: ImportedModel, as_json: bool) -> None:
    """Print a line for each tensor (its foreign name, our name and its shape), and then the architecture."""
    if as_json:
        tensors = {
            ours: {"name": theirs, "shape": list(imported.state[ours].shape)} for ours, theirs in imported.names.items()
        }
        model = imported.config.model_dump(mode="json")["model"]
        print_json({"tensors": tensors, "step": imported.step, "model": model})
        return
    width = max((len(name) for name in imported.names.values()), default=0)
    for ours, theirs in imported.names.items():
        print(f"{theirs:{width}}  {ours} {list(imported.state[ours].shape)}")
    num = sum(tensor.numel() for tensor in imported.state.values())
    print(f"{len(imported.state)} tensors, {num:,} parameters" + (f", step {imported.step:,}" if imported.step else ""))
    for name, value in imported.config.model_dump(mode="json")["model"].items():
        print(f"model.{name}={value}")
