"""Classifiers that transformers saved, as fine-tuned runs of ours."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.recipes.capabilities import StandsOnEncoder
from pretrainkit.recipes.exchange import ConvertsClassifiers
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.presets import own
from pretrainkit.recipes.glue.tasks import Kind
from pretrainkit.recipes.registry import able, find_recipe, recipe_of_huggingface


def read_classifier(
    glue: StandsOnEncoder[GlueRun], folder: Path, pooling: str | None = None
) -> tuple[GlueRun, dict[str, Tensor]]:
    """A config like that of glue/own, which names no columns yet, and the state dict of its model.

    Args:
        glue: The recipe of the run.
        folder: What transformers wrote.
        pooling: How it makes one vector of a text, where its files do not say so.

    Raises:
        CheckpointError, DataError: The folder is broken, or no recipe reads it.
    """
    try:
        values: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}/config.json cannot be read: {error}\n  copy it again") from None
    name = recipe_of_huggingface(values.get("model_type"), str(folder))
    recipe = able(find_recipe(name), ConvertsClassifiers)
    if pooling is not None and not recipe.chooses_pooling:
        raise InputError(f"classifiers of recipe {name!r} say themselves how they pool\n  leave --pooling out")
    found = recipe.import_text_classifier(folder, pooling)
    usual = own()
    length = found.length or min(usual.data.max_seq_length, found.max_positions or usual.data.max_seq_length)
    on_examples: Kind = "classes" if found.classes else "numbers"
    kinds: dict[str, Kind] = {"examples": on_examples, "words": "tags", "spans": "spans"}
    data = usual.data.model_copy(update={"kind": kinds[found.reads], "max_seq_length": length})
    config = glue.with_encoder(usual.model_copy(update={"data": data}), name, found.config, folder)
    config = config.model_copy(update={"model": config.model.model_copy(update={"classes": found.classes})})
    state = {f"encoder.{name}": tensor for name, tensor in found.encoder.items()}
    return config, state | {f"head.{name}": tensor for name, tensor in found.head.items()}
