"""Weights of other formats and projects, in and out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pretrainkit.errors import DataError, InputError
from pretrainkit.recipes.registry import entries, find_recipe
from pretrainkit.running.configs import load_config
from pretrainkit.running.kept_tokenizer import tokenizer_given
from pretrainkit.running.opened import open_model, with_weights
from pretrainkit.training.recipe import ImportedConfig, ImportedModel

if TYPE_CHECKING:
    pass


def import_config(
    path: str | Path, recipe: str | None = None, settings: Iterable[str] = (), nproc: int = 1
) -> ImportedConfig:
    """A config file of the system that a recipe succeeds, as a config or command of ours.

    Args:
        path: The file.
        recipe: Who reads it; None: the only recipe that can.
        settings: `dotted.key=value` in that system's own keys.
        nproc: Ranks it is meant for.
    """
    readers = [entry.name for entry in entries().values() if entry.load().reads_configs_of]
    name = recipe or (readers[0] if len(readers) == 1 else None)
    if name is None:
        raise InputError(f"who reads {path}? give one of: {', '.join(f'--recipe {reader}' for reader in readers)}")
    return find_recipe(name).import_config(Path(path), settings, nproc)


def export(path: str | Path, format: str, out: str | Path, *, averaged: bool = False) -> Path:
    """Write the weights of a run or checkpoint for others: `export("runs/x", "huggingface", "out")`.

    Formats: "huggingface" (what `transformers` loads); "safetensors" (config.yaml, model.safetensors, tokenizer/); and
    the recipe's `export_formats`, whose `out` is a file.
    `averaged`: the average of the weights that `ema_decay` keeps.

    Raises:
        InputError: Unknown format, `out` exists or cannot be written.
    """
    from pretrainkit.exporting.folder import new_file
    from pretrainkit.exporting.native import write_native

    opened = open_model(path, averaged=averaged)
    if format in opened.recipe.export_formats:
        with new_file(Path(out)) as aside:
            opened.recipe.export_file(opened.config, opened.model, format, aside)
    elif format == "huggingface":
        opened.recipe.export_huggingface(opened.config, opened.model, opened.tokenizer, Path(out))
    elif format == "safetensors":
        write_native(opened.config, opened.model, opened.tokenizer, Path(out))
    else:
        known = ", ".join(("huggingface", "safetensors", *opened.recipe.export_formats))
        raise InputError(f"unknown export format {format!r} of recipe {opened.recipe.name!r}\n  formats: {known}")
    return Path(out)


def import_model(
    path: str | Path,
    recipe: str,
    out: str | Path,
    *,
    format: str = "huggingface",
    config: str | Path | None = None,
    tokenizer: str | Path | None = None,
) -> Path:
    """Read a model of another library into ours, which `init_from`, `evaluate` and `generate` take.

    The whole model is built and checked before anything is written.

    Args:
        path: "huggingface": a folder that transformers wrote. Other formats: a file, or what the format has.
        recipe: Which recipe the model belongs to.
        out: The new folder.
        format: "huggingface", or one of the recipe's `file_formats`.
        config: Preset or YAML file that says the architecture of a file; None: as the file says, or the usual one.
        tokenizer: Folder of the model's tokenizer, where none lies beside it; a copy is kept.

    Raises:
        InputError: Unknown format, the file is broken or of another architecture, or `out` exists.
    """
    from pretrainkit.exporting.native import write_native

    given = None if tokenizer is None else tokenizer_given(Path(tokenizer))
    if format != "huggingface":
        reader = find_recipe(recipe)
        found = read_foreign_model(path, recipe, format=format, config=config)
        model = with_weights(reader, found.config, found.state, path)
        write_native(found.config, model, given, Path(out))
        return Path(out)
    if config is not None:
        raise InputError(f"config={config} is for files; {path} says its own architecture\n  leave it out")
    if not Path(path).exists():
        raise DataError(f"there is no folder {path}\n  give the place of the model")
    if not (Path(path) / "config.json").is_file():
        raise DataError(
            f"{path} is not a folder that transformers wrote: it has no config.json\n"
            "  runs, checkpoints and exports of ours are read as they are, by init_from=, evaluate and generate"
        )
    opened = open_model(path, recipe=recipe)
    write_native(opened.config, opened.model, given or opened.tokenizer, Path(out))
    return Path(out)


def difference_from_huggingface(path: str | Path) -> float:
    """The largest difference between the outputs of a run, checkpoint or export and those of transformers for the same
    weights, on random inputs in float32.

    Raises:
        InputError: The recipe has no such comparison, or the model no Hugging Face form.
    """
    from tempfile import TemporaryDirectory

    from pretrainkit.exporting.torchvision_shim import import_transformers

    opened = open_model(path)
    import_transformers()
    with TemporaryDirectory() as folder:
        opened.recipe.export_huggingface(opened.config, opened.model, None, Path(folder, "model"))
        return opened.recipe.difference_from_huggingface(opened.config, opened.model, Path(folder, "model"))


def read_foreign_model(
    path: str | Path, recipe: str, *, format: str, config: str | Path | None = None
) -> ImportedModel:
    """What `import_model` would make of a file of another system, with the names of its tensors; writes nothing."""
    reader = find_recipe(recipe)
    if format not in reader.file_formats:
        known = ", ".join(("huggingface", *reader.file_formats))
        raise InputError(f"recipe {recipe!r} does not read the format {format!r}\n  formats: {known}")
    return reader.import_file(Path(path), format, None if config is None else load_config(config))
