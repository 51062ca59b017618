"""A text encoder and a linear head on its vector of each example.

Dimensions: B examples, D width of the encoder, C classes (1 where a number is asked for).
"""

import torch
from torch import Tensor, nn

from pretrainkit.errors import ConfigError
from pretrainkit.nn.dropout import dropout
from pretrainkit.nn.initialise import SkipInitialisation, initialise_layer
from pretrainkit.recipes.glue.config import GlueModelConfig
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.training.objective import Batch
from pretrainkit.training.recipe import Recipe
from pretrainkit.training.text_encoder import TextEncoder


class TextHead(nn.Module):
    """Encoder, dropout, linear."""

    def __init__(self, encoder: TextEncoder, num_outputs: int, dropout_rate: float) -> None:
        """The head is not initialised."""
        super().__init__()
        self.encoder, self.dropout_rate = encoder, dropout_rate
        self.head = nn.Linear(encoder.width, num_outputs)

    def blocks(self) -> list[nn.Module]:
        """The submodules to compile, shard and recompute one by one."""
        return self.encoder.blocks()

    def forward(self, batch: Batch, max_length: int) -> Tensor:
        """(B, C) logits, or (B, 1) numbers; see `TextEncoder` for the batch."""
        x_BD = self.encoder(batch, max_length)
        return self.head(dropout(x_BD, self.dropout_rate, is_training=self.training))


def encoder_of(config: GlueModelConfig) -> tuple[Recipe, object]:
    """The recipe of the encoder, and its config."""
    if config.encoder is None:
        raise ConfigError("there is no encoder to train further\n  name a run, checkpoint or export: init_from=RUN")
    recipe = find_recipe(config.encoder.recipe)
    return recipe, recipe.config_class.model_validate(config.encoder.config)


def build(config: GlueModelConfig) -> TextHead:
    """The model on torch's default device, initialised from its global generator; on "meta" without values."""
    recipe, encoder_config = encoder_of(config)
    encoder = recipe.build_text_encoder(encoder_config, recipe.build_model(encoder_config))
    assert config.classes is not None  # bound
    rate = encoder.dropout_rate if config.dropout is None else config.dropout
    with SkipInitialisation():
        model = TextHead(encoder, max(1, len(config.classes)), rate)
    if torch.get_default_device().type != "meta":
        initialise_layer(model.head, config.initializer_range)
    return model
