"""Encoders as a fine-tuning wants them. Torch-free."""

import json
from pathlib import Path

from pretrainkit.config.loader import flatten, resolve
from pretrainkit.recipes.capabilities import EncodesText
from pretrainkit.recipes.glue.config import EncoderConfig, GlueRun
from pretrainkit.recipes.registry import Recipes, able, find_recipe


def fitted(encoder: EncoderConfig, config: GlueRun, tokenizer: Path | None) -> tuple[EncoderConfig, Path | None]:
    """The encoder with `model.encoder_settings`, for texts of `data.max_seq_length`, and the folder of what its reader
    needs.

    Raises:
        ConfigError: Its recipe knows no such setting.
    """
    settings = config.model.encoder_settings
    words = [f"{path}={json.dumps(value)}" for path, value in flatten(settings).items()] if settings else []
    described = resolve(encoder.config, words, Recipes()).config
    recipe = able(find_recipe(encoder.recipe), EncodesText)
    described, tokenizer = recipe.as_text_encoder(described, tokenizer, config.data.max_seq_length)
    return EncoderConfig(recipe=encoder.recipe, config=described.model_dump(mode="json")), tokenizer
