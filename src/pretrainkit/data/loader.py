"""Loader: returns this rank's microbatches for a step number. The step is its only state.

Step s has the examples at positions s * batch_size … (s + 1) * batch_size - 1 of the order, for any number of ranks,
microbatches or workers; s is counted from the first step of the run. Records are computed in blocks of many steps,
because NumPy's cost per call would otherwise dominate small batches.
"""

import hashlib
import time
from collections.abc import Generator, Mapping
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from pretrainkit.data import plan, prefetch
from pretrainkit.data.order import Order
from pretrainkit.data.source import BatchSource, Records
from pretrainkit.errors import ConfigError, DataError

HostBatch = dict[str, np.ndarray]
Workers = Literal["threads", "processes"]

_BLOCK_EXAMPLES = 16384
"""Examples of this rank per block of records: enough to hide the cost per call, few enough for the CPU cache and for
resuming quickly."""
_BLOCK_EPOCHS = 4
"""Maximum number of epochs of a small corpus in one block, because each epoch adds a fixed cost."""
_KEPT_BLOCKS = 2
"""Number of cached blocks: threads prepare neighbouring steps, which may belong to two blocks."""

_STATE_NAMES = {
    "source": "the data itself",
    "mixture": "the sizes or weights of the mixture",
    "order": "data.order",
    "seed": "seed",
    "batch_size": "data.batch_size",
    "first_step": "the step at which the data begins (first_step, init.data)",
}


class Prepared(NamedTuple):
    """Prepared batch of one step."""

    step: int
    microbatches: list[HostBatch]
    """Microbatches of this rank; every rank has the same number."""
    waited_seconds: float
    """Time for which the consumer waited for this batch."""


class Loader:
    """Batches of a source in an order, for one rank. The arrays of a step depend only on its number."""

    def __init__(
        self,
        source: BatchSource,
        order: Order,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        microbatch_size: int | None = None,
        microbatch_tokens: int | None = None,
        prefetch: int = 2,
        workers: Workers = "threads",
        num_workers: int = 0,
        first_step: int = 0,
    ) -> None:
        """Raise ConfigError if the batch cannot be split as configured, DataError if the data has fewer examples than
        one batch needs.

        Args:
            batch_size: Examples of one step over all ranks.
            microbatch_size: Examples of one microbatch; None: all examples of this rank.
            microbatch_tokens: Instead of microbatch_size: maximum number of tokens of a microbatch (packed batches). A
                microbatch is empty if only another rank needs it.
            prefetch: Number of steps to prepare ahead in `iterate`. 0: prepare each step in the calling thread.
            workers: Use threads or processes. Processes help only if building an example is slow and holds the
                interpreter lock; the source must then be picklable at a low cost.
            num_workers: Number of threads or processes. 0: one thread.
            first_step: The step that holds the first positions of the order.
        """
        if order.sizes != source.sizes:
            raise ValueError(f"the order has components of {order.sizes} examples, but the source has {source.sizes}")
        if order.is_for_one_batch_size and order.batch_size != batch_size:
            raise ValueError(f"the order is for batches of {order.batch_size}, not {batch_size}")
        if microbatch_size is not None and microbatch_tokens is not None:
            raise ConfigError(
                "microbatches have a fixed number of examples or of tokens, not both; set only one of the two"
            )
        if workers == "processes" and num_workers < 1:
            raise ConfigError("preparing data in processes needs at least one worker; set the number of workers")
        self.source, self.order, self.batch_size = source, order, batch_size
        self.rank, self.world_size, self.first_step = rank, world_size, first_step
        self._rows = plan.rank_rows(batch_size, rank, world_size)
        self._capacity = microbatch_tokens
        self._slices = plan.even_microbatches(batch_size // world_size, microbatch_size)
        for needed, size in order.draws_per_batch(batch_size):
            if size < needed:
                raise DataError(
                    f"a batch needs {needed} examples, but the data has only {size}: a step would repeat examples\n"
                    f"  use more data, or data.batch_size of at most {batch_size * size // needed}"
                )
        self._prefetch, self._workers, self._num_workers = prefetch, workers, num_workers
        # Microbatches with a maximum number of tokens are planned from the lengths of the examples of all ranks.
        self._block_rows = np.arange(batch_size)[slice(None) if microbatch_tokens is not None else self._rows]
        steps_of_few_epochs = _BLOCK_EPOCHS * order.epoch_size // batch_size
        self._block_steps = max(1, min(_BLOCK_EXAMPLES // len(self._block_rows), steps_of_few_epochs))
        self._blocks: tuple[tuple[int, Records], ...] = ()

    def step(self, step: int) -> list[HostBatch]:
        """Return the microbatches of this rank for a step."""
        records = self._records(step)
        if self._capacity is not None:
            lengths = self.source.lengths(records)
            slices = plan.token_microbatches(lengths, self.world_size, self._capacity, records)[self.rank]
        else:
            slices = self._slices
            if len(slices) == 1:
                return [self._build(records, step)]
        return [self._build(records.take(rows), step) for rows in slices]

    def global_batch(self, step: int) -> HostBatch:
        """Return all examples of a step as one batch, the same on every rank."""
        return self._build(self.global_records(step), step)

    def global_records(self, step: int) -> Records:
        """Return the records of all examples of a step."""
        start = (step - self.first_step) * self.batch_size
        return self.order.records(np.arange(start, start + self.batch_size, dtype=np.int64))

    def iterate(self, start: int = 0, stop: int | None = None) -> Generator[Prepared, None, None]:
        """Yield the steps from `start` to `stop` (None: endless), prepared ahead. An error is raised at its step;
        closing the generator stops the workers."""
        steps = range(start, 2**62 if stop is None else stop)
        if self._prefetch == 0 and self._num_workers == 0:
            batches: Generator[list[HostBatch], None, None] = (self.step(step) for step in steps)
        else:
            num_workers = max(1, self._num_workers)
            run = prefetch.in_processes if self._workers == "processes" else prefetch.in_threads
            batches = run(self.step, steps, num_workers, max(self._prefetch, num_workers))
        try:
            for step in steps:
                started = time.perf_counter()
                microbatches = next(batches)
                yield Prepared(step, microbatches, time.perf_counter() - started)
        finally:
            batches.close()

    def num_steps_for(self, num_epochs: float) -> int:
        """Return the number of whole batches in `num_epochs` passes over the data (in a weighted mixture: over the
        component that is repeated first)."""
        return int(num_epochs * self.order.epoch_size / self.batch_size + 1e-9)  # 0.1 x 30 is 3 despite rounding

    def epochs_for(self, num_steps: int) -> float:
        """Return the number of passes over the data (over its most repeated component) in `num_steps` steps."""
        return self.order.num_epochs(num_steps * self.batch_size)

    def state(self, step: int) -> dict[str, int | str]:
        """Return the state for a checkpoint after `step` updates: at most 256 bytes of JSON, equal for any number of
        ranks."""
        return {"step": step, **self._identity}

    def check_state(self, state: Mapping[str, object]) -> int:
        """Return the step at which to resume. Raises DataError, with each difference, if the examples would differ from
        those of an uninterrupted run."""
        step = state.get("step")
        if not isinstance(step, int) or step < 0 or not set(self._identity) - {"first_step"} <= set(state):
            raise DataError(f"this is not a valid state of a loader: {dict(state)}")
        # Runs whose first step is 0 do not store it.
        old, new = ({"first_step": 0, **identity} for identity in (state, self._identity))
        changed = [
            f"  {label}: the checkpoint has {old[name]}, the config now has {new[name]}"
            for name, label in _STATE_NAMES.items()
            if old[name] != new[name]
        ]
        if changed:
            remedy = "  restore these settings, or start a new run from these weights with init_from"
            lines = [f"resuming at step {step} would not continue the same data", *changed, remedy]
            raise DataError("\n".join(lines))
        return step

    @cached_property
    def _identity(self) -> dict[str, int | str]:
        return {
            "source": hashlib.blake2b(self.source.fingerprint.encode(), digest_size=8).hexdigest(),
            "mixture": self.order.fingerprint,
            "order": self.order.mode,
            "seed": self.order.seed,
            "batch_size": self.batch_size,
            **({"first_step": self.first_step} if self.first_step else {}),
        }

    def _build(self, records: Records, step: int) -> HostBatch:
        return {**self.source.build(records), **self.source.of_step(step)}

    def _records(self, step: int) -> Records:
        """Return the records of this rank's rows, or of the whole batch if the plan needs all lengths."""
        if step < self.first_step:
            raise ValueError(f"there is no step {step}; the first one is {self.first_step}")
        block, within = divmod(step - self.first_step, self._block_steps)
        num_rows = len(self._block_rows)
        records = next((records for number, records in self._blocks if number == block), None)
        if records is None:
            steps = np.arange(block * self._block_steps, (block + 1) * self._block_steps, dtype=np.int64)
            records = self.order.records((steps[:, None] * self.batch_size + self._block_rows).ravel())
            self._blocks = (*self._blocks, (block, records))[-_KEPT_BLOCKS:]  # replaced as a whole, for threads
        return records.take(slice(within * num_rows, (within + 1) * num_rows))
