"""What the losses of all kinds of tasks have in common."""

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from pretrainkit.recipes.capabilities import EncodesText
from pretrainkit.recipes.glue.config import GlueRun
from pretrainkit.recipes.glue.kinds.labelled import Arrays
from pretrainkit.recipes.glue.model import encoder_of
from pretrainkit.recipes.registry import able
from pretrainkit.training.objective import Batch, Cost, HostBatch, SeparableObjective

Outputs = tuple[Tensor, ...]


class GlueObjective(SeparableObjective):
    """A loss on what a head says."""

    def __init__(self, config: GlueRun) -> None:
        self._max_length = config.data.max_seq_length
        self._encoder, self._encoder_config = encoder_of(config.model)

    def outputs(self, model: nn.Module, batch: Batch) -> Outputs:
        """What the model gives, float32."""
        found: Outputs = model(batch, self._max_length)
        return tuple(one.float() for one in found)

    @abstractmethod
    def by_example(self, outputs: Outputs, batch: HostBatch) -> list[Arrays]:
        """The outputs for each example of the batch, as `Labelled.said` wants them."""

    def cost(self, batch: HostBatch) -> Cost:
        lengths_B = batch["lengths"]
        config: Any = self._encoder_config
        return Cost(
            examples=len(lengths_B),
            tokens=int(lengths_B.sum()),
            slots=int(lengths_B.sum()),
            flops=able(self._encoder, EncodesText).text_encoder_flops(config, lengths_B),
        )
