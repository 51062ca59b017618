"""Text encoder of a trained model, for fine-tuning with a new head.

Dimensions: B examples, T slots (tokens or patches) of all examples together, D width.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from pretrainkit.training.objective import Batch


class TextEncoder(nn.Module, ABC):
    """Encodes examples without padding to one vector per example or per slot.

    A batch comes from `ReadExamples.build` of the recipe's `TextReader`. It always has `cu_seqlens` (B + 1,), the
    boundaries of the examples.
    """

    width: int
    """Width of the features, D."""
    dropout_rate: float
    """Dropout rate of the hidden states, and the default for heads."""

    @property
    def pooled_dropout_rate(self) -> float:
        """Dropout rate of the vectors from `forward`."""
        return self.dropout_rate

    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """Return the submodules to compile, shard and recompute one by one."""

    @abstractmethod
    def forward(self, batch: Batch, max_length: int) -> Tensor:
        """Return (B, D), one vector per example. No example is longer than `max_length`."""

    @abstractmethod
    def tokens(self, batch: Batch, max_length: int) -> Tensor:
        """Return (T, D), the hidden states of the slots."""

    def token_features(self, batch: Batch, max_length: int) -> Tensor:
        """Return (T, D), the input of heads that classify words or find spans. Default: `tokens`."""
        return self.tokens(batch, max_length)

    def vectors_and_tokens(self, batch: Batch, max_length: int) -> tuple[Tensor, Tensor]:
        """Return `forward` and `tokens` of a batch. Default: two separate passes."""
        return self(batch, max_length), self.tokens(batch, max_length)

    def freeze_pooling(self) -> None:
        """Freeze the parameters that only `forward` uses, for heads without it. Default: nothing to freeze."""
