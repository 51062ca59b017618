"""What a recipe hands to the loader: sources of examples that can be built in whole batches, by index.

Dimensions: B examples.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import ConfigError


@dataclass(frozen=True)
class Records:
    """Which examples a batch holds; everything random about an example is a function of its key."""

    source: NDArray[np.int64]
    """(B,) index of the mixture component."""
    epoch: NDArray[np.int64]
    """(B,) how often that component was gone through before."""
    index: NDArray[np.int64]
    """(B,) index of the example within its component."""
    key: NDArray[np.uint64]
    """(B,) random key of (seed, source, epoch, index)."""

    def take(self, rows: slice | NDArray[np.integer]) -> "Records":
        """The records of `rows`."""
        return Records(self.source[rows], self.epoch[rows], self.index[rows], self.key[rows])

    def __len__(self) -> int:
        return len(self.source)


class BatchSource(ABC):
    """All components of a mixture, and how to make batches of their examples."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """Examples per component and epoch."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes whenever the examples would."""

    def summary(self) -> dict[str, Any]:
        """What the data are, as JSON values for people: the run keeps it."""
        return {"fingerprint": self.fingerprint, "examples": sum(self.sizes)}

    @property
    def document_sizes(self) -> Sequence[NDArray[np.int64]]:
        """Per component, the examples of each document in order; read by the order "lanes" only.

        Raises:
            ConfigError: Examples of this source do not come from documents.
        """
        raise ConfigError("data.order=lanes needs examples that come from documents\n  use data.order=shuffle")

    @abstractmethod
    def lengths(self, records: Records) -> NDArray[np.int64]:
        """(B,) tokens each example will take (after trimming), from stored lengths only: no token is read."""

    @abstractmethod
    def build(self, records: Records) -> dict[str, np.ndarray]:
        """The batch of these examples, first axis B (packed batches aside). A pure function of `records`.

        `records` is empty where a rank has fewer packed microbatches than another: the batch then has no example.
        """

    def of_step(self, step: int) -> dict[str, np.ndarray]:
        """What belongs to a step as a whole, such as a mixing share: added to each of its microbatches on every rank. A
        pure function of `step`. Default: nothing."""
        return {}
