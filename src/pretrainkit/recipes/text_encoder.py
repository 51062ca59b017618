"""The part of a trained model that turns texts into features, to be trained further under another head.

Dimensions: B examples, T slots (tokens or patches) of all examples together, D width.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from pretrainkit.training.objective import Batch


class TextEncoder(nn.Module, ABC):
    """Examples without padding to one vector each, or to one for each slot.

    A batch is what `ReadExamples.build` of its recipe's `TextReader` gives: always with `cu_seqlens` (B + 1,), where
    examples begin and end.
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
        """(T, D): the hidden states of the slots."""

    def token_features(self, batch: Batch, max_length: int) -> Tensor:
        """(T, D): what a head on words or places in the text reads. Default: `tokens`."""
        return self.tokens(batch, max_length)

    def vectors_and_tokens(self, batch: Batch, max_length: int) -> tuple[Tensor, Tensor]:
        """`forward` and `tokens` of a batch. Default: one after the other."""
        return self(batch, max_length), self.tokens(batch, max_length)

    def freeze_pooling(self) -> None:
        """Called where `forward` is not used: what it alone needs is not trained. Default: there is no such thing."""
