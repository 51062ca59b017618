"""The part of a trained model that turns texts into features, to be trained further under another head.

Dimensions: B examples, T tokens of all examples together, D width.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from pretrainkit.training.objective import Batch


class TextEncoder(nn.Module, ABC):
    """Examples without padding to one vector each.

    A batch has, one example after another, `input_ids`, `token_type_ids` (0, and 1 from the second text of a pair on)
    and `positions` (T,), and `cu_seqlens` (B + 1,), where examples begin and end; all int32.
    """

    width: int
    """D."""
    dropout_rate: float
    """Of its hidden states: what a head in front of which nothing else is said drops, too."""

    @property
    def pooled_dropout_rate(self) -> float:
        """The same for the vectors of `forward`."""
        return self.dropout_rate

    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """The submodules to compile, shard and recompute one by one."""

    @abstractmethod
    def forward(self, batch: Batch, max_length: int) -> Tensor:
        """(B, D): each example as one vector. No example is longer than `max_length`."""

    @abstractmethod
    def tokens(self, batch: Batch, max_length: int) -> Tensor:
        """(T, D): the hidden states of the tokens."""
