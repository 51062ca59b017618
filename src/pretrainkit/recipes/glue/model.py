"""A text encoder and a head.

Dimensions: B examples, T slots of all of them.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from pretrainkit.errors import ConfigError
from pretrainkit.nn.initialise import initialise_layer
from pretrainkit.recipes.glue.config import GlueModelConfig
from pretrainkit.recipes.recipe import Recipe
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.recipes.text_encoder import TextEncoder
from pretrainkit.training.objective import Batch


class HeadedEncoder(nn.Module, ABC):
    """What is trained."""

    def __init__(self, encoder: TextEncoder, head: nn.Module, dropout_rate: float) -> None:
        """
        Args:
            encoder: Gives features.
            head: Reads them.
            dropout_rate: Of features in front of the head.
        """
        super().__init__()
        self.encoder, self.head, self.dropout_rate = encoder, head, dropout_rate

    def blocks(self) -> list[nn.Module]:
        """The submodules to compile, shard and recompute one by one."""
        return self.encoder.blocks()

    def initialise_head(self, scale: float) -> None:
        """Weights of linear layers from a normal distribution of this scale, cut at two scales."""
        for module in self.head.modules():
            initialise_layer(module, scale)

    @abstractmethod
    def forward(self, batch: Batch, max_length: int) -> tuple[Tensor, ...]:
        """What the loss is taken of; see `TextReader` for the batch. No example is longer than `max_length`."""


def encoder_of(config: GlueModelConfig) -> tuple[Recipe, object]:
    """The recipe of the encoder, and its config."""
    if config.encoder is None:
        raise ConfigError("there is no encoder to train further\n  name a run, checkpoint or export: init_from=RUN")
    recipe = find_recipe(config.encoder.recipe)
    return recipe, recipe.config_class.model_validate(config.encoder.config)
