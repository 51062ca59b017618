"""The head and the loss of each kind of task."""

import torch

from pretrainkit.nn.initialise import SkipInitialisation, initialise_layer
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.heads.texts import TextHead, TextObjective
from pretrainkit.recipes.glue.model import HeadedEncoder, encoder_of
from pretrainkit.recipes.glue.objective import GlueObjective


def build_model(config: GlueRun) -> HeadedEncoder:
    """The model on torch's default device, initialised from its global generator; on "meta" without values."""
    recipe, encoder_config = encoder_of(config.model)
    encoder = recipe.build_text_encoder(encoder_config, recipe.build_model(encoder_config))
    assert config.model.classes is not None  # bound
    rate = encoder.pooled_dropout_rate if config.model.dropout is None else config.model.dropout
    with SkipInitialisation():
        model = TextHead(encoder, max(1, len(config.model.classes)), rate)
    if torch.get_default_device().type != "meta":
        initialise_layer(model.head, config.model.initializer_range)
    return model


def build_objective(config: GlueRun) -> GlueObjective:
    """The loss of the kind of task that a bound config names."""
    return TextObjective(config)
