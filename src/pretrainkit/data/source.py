"""Interface between recipes and the loader: sources that build whole batches of examples by index.

Dimensions: B examples.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.rng import fold

if TYPE_CHECKING:
    from pretrainkit.workers.processes import Progress

T = TypeVar("T")
_READ_AT_ONCE = 64


@dataclass(frozen=True)
class Records:
    """Identities of the examples of a batch. All randomness of an example is a function of its key."""

    source: NDArray[np.int64]
    """(B,) index of the mixture component."""
    epoch: NDArray[np.int64]
    """(B,) number of earlier passes over that component."""
    index: NDArray[np.int64]
    """(B,) index of the example within its component."""
    key: NDArray[np.uint64]
    """(B,) random key of (seed, source, epoch, index)."""

    @classmethod
    def of_first_epoch(
        cls,
        index: Sequence[int] | NDArray[np.integer],
        source: int | NDArray[np.integer] = 0,
        key: NDArray[np.uint64] | None = None,
    ) -> "Records":
        """Return the examples `index` of a component, or of a component each. Without keys, their indices are used, for
        examples whose random choices do not matter."""
        index_B = np.array(index, np.int64)
        zeros_B = np.zeros_like(index_B)
        return cls(zeros_B + source, zeros_B, index_B, index_B.astype(np.uint64) if key is None else key)

    def held_out_keys(self, stream: int) -> NDArray[np.uint64]:
        """Return keys of `stream` that depend on neither the seed nor the epoch, so that losses on held-out examples
        are comparable."""
        return fold(fold(stream, self.source), self.index)

    def by_component(self, components: Sequence[T]) -> list[tuple[T, NDArray[np.int64]]]:
        """Return each component that has examples in the batch, with their rows."""
        rows = [np.flatnonzero(self.source == number) for number in range(len(components))]
        return [(component, own) for component, own in zip(components, rows, strict=True) if len(own)]

    def take(self, rows: slice | NDArray[np.integer]) -> "Records":
        """Return the records of `rows`."""
        return Records(self.source[rows], self.epoch[rows], self.index[rows], self.key[rows])

    def __len__(self) -> int:
        return len(self.source)


class BatchSource(ABC):
    """All components of a mixture; builds batches of their examples."""

    weights: Sequence[float | None] | None = None
    """Relative share of each component in training; None: that in the config."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """Examples per component and epoch."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash that changes whenever the examples change."""

    def summary(self) -> dict[str, Any]:
        """Return a description of the data as JSON values. It is stored in the run folder."""
        return {"fingerprint": self.fingerprint, "examples": sum(self.sizes)}

    @property
    def document_sizes(self) -> Sequence[NDArray[np.int64]]:
        """Number of examples of each document in order, per component; only the order "lanes" uses it. Raises
        ConfigError if the examples of this source do not come from documents."""
        raise ConfigError("data.order=lanes needs examples that come from documents\n  use data.order=shuffle")

    @abstractmethod
    def lengths(self, records: Records) -> NDArray[np.int64]:
        """Return (B,) tokens of each example after trimming, computed from stored lengths without reading tokens."""

    @abstractmethod
    def build(self, records: Records) -> dict[str, np.ndarray]:
        """Return the batch of these examples; the first axis is B, except in packed batches. A pure function.

        `records` is empty if this rank has fewer packed microbatches than another rank.
        """

    @property
    def faster_loading(self) -> str | None:
        """Advice on how to prepare the same examples once, before training. Default: None, there is no such way."""
        return None

    def of_step(self, step: int) -> dict[str, np.ndarray]:
        """Return arrays for the whole step, such as a mixing share. They are added to each microbatch on every rank.
        Pure function of `step`. Default: no arrays."""
        return {}


def unreadable(source: BatchSource, title: str, progress: "Progress") -> Iterator[str]:
    """Build every example once, and yield the error message of each example that cannot be built."""
    progress.stage(title, sum(source.sizes), "example")
    for component, size in enumerate(source.sizes):
        for begin in range(0, size, _READ_AT_ONCE):
            records = Records.of_first_epoch(range(begin, min(begin + _READ_AT_ONCE, size)), component)
            if _error(source, records):
                singles = (_error(source, records.take(slice(row, row + 1))) for row in range(len(records)))
                yield from filter(None, singles)
            progress.advance(len(records))


def _error(source: BatchSource, records: Records) -> str:
    try:
        source.build(records)
    except DataError as error:
        return str(error)
    return ""
