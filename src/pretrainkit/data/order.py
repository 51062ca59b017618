"""Order of the training examples, as a pure function from (seed, position) to the example at that position.

Only the position is stored, so resuming costs nothing, and ranks, workers and microbatches always agree about the
order.

*Streams.* Without weights all components form one stream. A pass visits every example of every component exactly once,
in an order permuted as a whole, so the share of a component is proportional to its size. With weights each component is
a separate stream with its own epochs, and the streams take turns in a fixed pattern (`data/turns.py`).

*Modes.* "sequential": the stored order. "shuffle": every epoch of a stream is a permutation of its examples
(`data/permutation.py`). "lanes": every epoch permutes the documents, concatenates their examples and cuts the result
into as many lanes as the batch has rows for the stream. From step to step a row continues in its lane, and thus in its
document, until the lane or the epoch ends. "debias" and "set_by_set": each batch has examples of only one component
(`data/turns.py`). Each component is a stream that is shuffled in every pass; remaining examples that do not fill a
batch come first in the next pass.

*Static order* (to repeat the runs of ZeroVL): the order of every pass is PyTorch's `randperm` with seed 0, and
remaining examples that do not fill a batch are never used.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pretrainkit import rng
from pretrainkit.data.permutation import MAX_SIZE, Ints, permute
from pretrainkit.data.source import Records
from pretrainkit.data.turns import Debias, Turns, interleave, make_turns, slot_counts
from pretrainkit.errors import ConfigError, DataError

Mode = Literal["shuffle", "lanes", "sequential", "debias", "set_by_set"]
_ONE_COMPONENT_PER_BATCH: tuple[Mode, ...] = ("debias", "set_by_set")

_KEPT_EPOCHS = 2
"""Number of epochs whose document tables are cached per stream; a block of positions seldom needs more."""


class Order:
    """Maps positions of the stream to records."""

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        seed: int,
        mode: Mode = "shuffle",
        weights: Sequence[float | None] | None = None,
        batch_size: int | None = None,
        document_sizes: Sequence[NDArray[np.integer]] | None = None,
        debias: Debias | None = None,
        may_repeat: bool = False,
        is_static: bool = False,
    ) -> None:
        """Set up the order.

        Args:
            seed: Seed of the permutations and of the examples' keys.
            weights: Relative share of each component; None (or None for all): proportional to the sizes. Shares are
                exact if decimal weights have a common pattern of at most 65536 slots, which is then repeated. In
                "lanes" the pattern is one batch, so shares are rounded to whole rows; in "debias" they are
                probabilities.
            batch_size: Number of rows. Required by "lanes", "debias", "set_by_set" and the static order.
            document_sizes: Required by "lanes" only: for each component the number of examples of each of its
                documents, in stored order.
            debias: For "debias" only; None: its defaults.
            may_repeat: True to accept fewer examples than a batch needs. A batch then contains some of them several
                times.
            is_static: True for the order of ZeroVL (see the top of this file). For "shuffle" without weights, "debias"
                and "set_by_set" only.

        Raises:
            ConfigError: Unknown mode, settings that do not fit together, or a component without rows.
            DataError: An empty component, one that is too small for the mode, or documents whose sizes do not add up to
                the number of examples.
        """
        if mode not in get_args(Mode):
            raise ConfigError(f"unknown data order {mode!r}; choose one of {', '.join(get_args(Mode))}")
        if not sizes:
            raise DataError("there is no data to order\n  set at least one folder of shards in data.train")
        if empty := [component for component, size in enumerate(sizes) if size < 1]:
            raise DataError(
                f"component {empty[0]} of the data has no examples\n  leave it out, or check how it was created"
            )
        if sum(sizes) > MAX_SIZE:
            raise DataError(f"{sum(sizes)} examples are more than the {MAX_SIZE} that can be ordered")
        self.sizes = tuple(int(size) for size in sizes)
        self.seed = int(seed)
        self.mode: Mode = mode
        self.batch_size = batch_size
        self.weights = _checked_weights(self.sizes, weights)
        if mode == "lanes" and (batch_size is None or document_sizes is None):
            raise ValueError("order 'lanes' needs batch_size and document_sizes")
        documents = _checked_documents(self.sizes, document_sizes) if mode == "lanes" and document_sizes else None
        self._document_digest = "" if documents is None else _digest(*(sizes.tobytes() for sizes in documents))
        self._is_one_per_batch = mode in _ONE_COMPONENT_PER_BATCH
        self._may_repeat = may_repeat
        if (self._is_one_per_batch or is_static) and batch_size is None:
            raise ValueError(f"order {mode!r} needs batch_size here")
        self._check_static(is_static)
        num_used_per = batch_size if is_static else None
        num_rows = batch_size if mode == "lanes" else None
        inside: Mode = "shuffle" if self._is_one_per_batch else mode
        if self.weights is None and not self._is_one_per_batch:
            self._counts: tuple[int, ...] = (1,)
            everything = range(len(self.sizes))
            self._streams = [_Stream(self.seed, inside, everything, self.sizes, documents, num_rows, num_used_per)]
        else:
            self._counts = (1,) * len(self.sizes)
            if self.weights is not None and not self._is_one_per_batch:
                self._counts = slot_counts(self.weights, num_rows)
            self._streams = [
                _Stream(self.seed, inside, [c], [size], documents and [documents[c]], self._counts[c], num_used_per)
                for c, size in enumerate(self.sizes)
            ]
        self._turns: Turns | None = None
        self._settings = ""
        """Settings that only turns and the static order have; part of the fingerprint. Empty in all other orders."""
        if batch_size is not None and (mode == "debias" or mode == "set_by_set"):
            chosen = make_turns(mode, self.sizes, self.weights, batch_size, debias or Debias(), is_static=is_static)
            self._turns, self._settings = chosen
        elif is_static:
            self._settings = repr(("static", batch_size))
        # The number of a draw from a stream is: how often the pattern was repeated before, times the slots that the
        # stream has in the pattern, plus the rank of the draw's slot among them.
        self._pattern = interleave(self._counts)
        self._rank_in_pattern = np.empty(len(self._pattern), np.int64)
        for c, count in enumerate(self._counts):
            self._rank_in_pattern[self._pattern == c] = np.arange(count)
        self._component_keys = np.array([rng.stream_key(self.seed, "example", c) for c in range(len(sizes))], np.uint64)

    def _check_static(self, is_static: bool) -> None:
        if not is_static:
            return
        if self.mode in ("lanes", "sequential") or (self.mode == "shuffle" and self.weights is not None):
            weighted = " of weighted components" if self.weights is not None else ""
            raise ConfigError(
                f"there is no static order for {self.mode!r}{weighted}\n"
                "  it is only for shuffle without weights, and for one component per batch"
            )
        assert self.batch_size is not None
        sizes = self.sizes if self._is_one_per_batch else (sum(self.sizes),)
        for component, size in enumerate(sizes):
            if size < self.batch_size:
                raise DataError(
                    f"component {component} has {size} examples, too few for a batch of {self.batch_size}: in the "
                    "static order they would never be used\n  leave it out, or use smaller batches"
                )

    def records(self, positions: Ints) -> Records:
        """Return the records at `positions` (N,), each at least 0, in any order."""
        num_streams = len(self._streams)
        if num_streams == 1 and self._turns is None:
            source, epoch, index = self._streams[0].locate(positions)
        else:
            stream_of, draw = self._draws(positions)
            source, epoch, index = (np.empty(len(positions), np.int64) for _ in range(3))
            for c, stream in enumerate(self._streams):
                rows = np.flatnonzero(stream_of == c)
                source[rows], epoch[rows], index[rows] = stream.locate(draw[rows])
        return Records(source, epoch, index, self._example_keys(source, epoch, index))

    def _draws(self, positions: Ints) -> tuple[Ints, Ints]:
        """Convert positions (N,) to (stream, number of the draw from it), each (N,)."""
        if self._turns is None:
            turn, slot = np.divmod(positions, len(self._pattern))
            stream_of = self._pattern[slot]
            return stream_of, turn * np.array(self._counts)[stream_of] + self._rank_in_pattern[slot]
        assert self.batch_size is not None
        step, row = np.divmod(positions, self.batch_size)
        steps, back = np.unique(step, return_inverse=True)
        component, number = self._turns.locate(steps)
        return component[back], number[back] * self.batch_size + row

    @property
    def is_for_one_batch_size(self) -> bool:
        """True if positions have a meaning only in batches of `batch_size`."""
        return self.mode == "lanes" or bool(self._settings)

    def num_epochs(self, num_examples: int) -> float:
        """Return the number of passes of the first `num_examples` positions over the data. It is that of the most
        repeated component (if components are drawn at random: on average)."""
        if self._settings:
            return num_examples / self.epoch_size
        return max(num_examples * count / (len(self._pattern) * size) for count, size in self._counts_and_sizes())

    @property
    def epoch_size(self) -> int:
        """Number of positions until a component has been visited once (if components are drawn at random: on average).
        Without weights this is one pass over everything."""
        if self._turns is not None:
            return self._turns.epoch_size
        if self._settings:
            return self._streams[0].num_used
        return min(-(-size * len(self._pattern) // count) for count, size in self._counts_and_sizes())

    def draws_per_batch(self, batch_size: int) -> list[tuple[int, int]]:
        """Return (examples that a batch takes on average, rounded up; available examples) for each stream. Empty if
        examples may be repeated in a batch."""
        if self._may_repeat:
            return []
        if self._turns is not None:
            return [(batch_size, size) for size in self.sizes]
        return [(-(-batch_size * count // len(self._pattern)), size) for count, size in self._counts_and_sizes()]

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change whenever the records could change, for the same seed and mode."""
        parts = [repr((self.sizes, self._counts)), self._document_digest, *filter(None, [self._settings])]
        return _digest(*(part.encode() for part in parts))

    def _counts_and_sizes(self) -> list[tuple[int, int]]:
        return [(count, stream.size) for count, stream in zip(self._counts, self._streams, strict=True)]

    def _example_keys(self, source: Ints, epoch: Ints, index: Ints) -> NDArray[np.uint64]:
        if len(source) == 0:
            return np.empty(0, np.uint64)
        if len(self.sizes) == 1 and epoch.min() == epoch.max():  # the same bits, with one fold instead of N
            return rng.fold(rng.fold(self._component_keys, epoch[:1]), index)
        return rng.fold(rng.fold(self._component_keys[source], epoch), index)


class _Stream:
    """Components that are ordered as one sequence of `size` examples, repeatedly.

    `documents` are the numbers of examples of the documents of each component, used by "lanes" only. `num_used_per` is
    the batch size of a static order, whose passes have only whole batches.
    """

    def __init__(
        self,
        seed: int,
        mode: Mode,
        components: Sequence[int],
        sizes: Sequence[int],
        documents: Sequence[Ints] | None,
        num_lanes: int | None,
        num_used_per: int | None = None,
    ) -> None:
        self.mode, self.size, self.first_component = mode, sum(sizes), components[0]
        self.num_lanes, self.num_used = num_lanes or 1, self.size
        self.ends = np.cumsum(np.array(sizes, np.int64))
        self.key = rng.stream_key(seed, "order", self.first_component, len(components))
        self.documents = None if documents is None else np.concatenate(documents)
        if self.documents is not None:
            self.document_starts = np.cumsum(self.documents) - self.documents
        self.static_places: Ints | None = None
        if num_used_per is not None:
            import torch

            self.num_used = self.size // num_used_per * num_used_per
            self.static_places = torch.randperm(self.size, generator=torch.Generator().manual_seed(0)).numpy()
        self._tables: dict[int, tuple[Ints, Ints]] = {}

    def locate(self, draws: Ints) -> tuple[Ints, Ints, Ints]:
        """Convert draw numbers (N,) of this stream to (component, epoch, index in the component), each (N,)."""
        epoch = draws // self.num_used
        offset = draws - epoch * self.num_used
        if len(draws) == 0 or self.mode == "sequential":
            place = offset
        elif self.static_places is not None:
            place = self.static_places[offset]
        elif self.mode == "shuffle":
            epochs = epoch[:1] if epoch.min() == epoch.max() else epoch
            place = permute(offset, self.size, rng.fold(self.key, epochs))
        else:
            place = np.empty(len(draws), np.int64)
            for one_epoch in np.unique(epoch):
                rows = np.flatnonzero(epoch == one_epoch)
                place[rows] = self._read_lanes(int(one_epoch), offset[rows])
        if len(self.ends) == 1:
            return np.full(len(draws), self.first_component, np.int64), epoch, place
        # side="right": a place equal to the end of a component is the first place of the next one.
        part = np.searchsorted(self.ends, place, side="right")
        return part, epoch, place - (self.ends - np.diff(self.ends, prepend=0))[part]

    def _read_lanes(self, epoch: int, offset: Ints) -> Ints:
        """Convert offsets in the epoch to places in storage. Lane i is read at offsets i, i + num_lanes, i + 2
        num_lanes, ...

        The first (size mod num_lanes) lanes are one example longer, so every place belongs to exactly one offset. If an
        epoch starts in the middle of a batch, so do its lanes."""
        documents, ends = self._document_table(epoch)
        turn, lane = np.divmod(offset, self.num_lanes)  # each turn takes one example from every lane
        short, num_longer = divmod(self.size, self.num_lanes)
        place = lane * short + np.minimum(lane, num_longer) + turn  # after all earlier lanes, some of which are longer
        rank = np.searchsorted(ends, place, side="right")
        document = documents[rank]
        assert self.documents is not None
        # Convert the start of the document in this epoch's order to its start in storage.
        return place - (ends[rank] - self.documents[document]) + self.document_starts[document]

    def _document_table(self, epoch: int) -> tuple[Ints, Ints]:
        """Return the documents in the order of this epoch, and the cumulative number of their examples."""
        assert self.documents is not None
        table = self._tables.get(epoch)
        if table is None:
            everything = np.arange(len(self.documents), dtype=np.int64)
            documents = permute(everything, len(everything), rng.fold(self.key, np.array([epoch])))
            table = documents, np.cumsum(self.documents[documents])
            kept = list(self._tables.items())[1 - _KEPT_EPOCHS :]
            self._tables = {**dict(kept), epoch: table}  # replaced as a whole, because other threads may be reading it
        return table


def _checked_weights(sizes: tuple[int, ...], weights: Sequence[float | None] | None) -> tuple[float, ...] | None:
    if weights is None or all(weight is None for weight in weights):
        return None
    if len(weights) != len(sizes):
        raise ConfigError(f"there are {len(weights)} weights for {len(sizes)} components; set one for each")
    numbers = tuple(float(weight) for weight in weights if weight is not None)
    if len(numbers) < len(weights):
        missing = ", ".join(str(c) for c, weight in enumerate(weights) if weight is None)
        raise ConfigError(
            f"some components of the data have a weight, but components {missing} have none\n"
            "  set the weight of every component, or of none to use their sizes"
        )
    return numbers


def _checked_documents(sizes: tuple[int, ...], document_sizes: Sequence[NDArray[np.integer]]) -> list[Ints]:
    if len(document_sizes) != len(sizes):
        raise ValueError(f"document sizes of {len(document_sizes)} components were passed for {len(sizes)} components")
    documents = [np.asarray(counts, np.int64) for counts in document_sizes]
    for component, (counts, size) in enumerate(zip(documents, sizes, strict=True)):
        if counts.sum() != size or (counts < 0).any():
            raise DataError(
                f"the documents of component {component} add up to {counts.sum()} examples, but it has {size}\n"
                "  its index is broken: write these shards again"
            )
    return documents


def _digest(*parts: bytes) -> str:
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()
