"""The head and the loss of each kind of task."""

from collections.abc import Callable, Mapping

import torch

from pretrainkit.nn.initialise import SkipInitialisation, initialise_layer
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.heads.tags import TagHead, TagObjective
from pretrainkit.recipes.glue.heads.texts import TextHead, TextObjective
from pretrainkit.recipes.glue.model import HeadedEncoder, encoder_of
from pretrainkit.recipes.glue.objective import GlueObjective
from pretrainkit.recipes.glue.source import task_of
from pretrainkit.recipes.glue.tasks import Kind
from pretrainkit.training.text_encoder import TextEncoder

_HEADS: Mapping[Kind, Callable[[TextEncoder, int, float], HeadedEncoder]] = {
    "classes": TextHead,
    "numbers": TextHead,
    "tags": TagHead,
}
_OBJECTIVES: Mapping[Kind, Callable[[GlueRun], GlueObjective]] = {
    "classes": TextObjective,
    "numbers": TextObjective,
    "tags": TagObjective,
}


def build_model(config: GlueRun) -> HeadedEncoder:
    """The model on torch's default device, initialised from its global generator; on "meta" without values."""
    recipe, encoder_config = encoder_of(config.model)
    encoder = recipe.build_text_encoder(encoder_config, recipe.build_model(encoder_config))
    assert config.model.classes is not None  # bound
    rate = encoder.dropout_rate if config.model.dropout is None else config.model.dropout
    num_classes = len(config.model.classes)
    with SkipInitialisation():
        model = _HEADS[task_of(config.data).kind](encoder, max(1, num_classes), rate)
    if torch.get_default_device().type != "meta":
        initialise_layer(model.head, config.model.initializer_range)
    return model


def build_objective(config: GlueRun) -> GlueObjective:
    """The loss of the kind of task that a bound config names."""
    return _OBJECTIVES[task_of(config.data).kind](config)
