"""Speed at which the data of a run is prepared on this machine."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrainkit.data.loader import Loader
    from pretrainkit.data.source import BatchSource
    from pretrainkit.training.objective import AnyObjective
    from pretrainkit.training.run import RunConfig

MAX_MEASURED = 4096
"""Maximum number of examples that are measured."""
_MAX_BUILT = 256
"""Maximum number of examples of a step that are prepared: a batch of images may take minutes."""
_MEASURING_SECONDS = 2.0
_MAX_WORKERS = 32
"""Maximum number of workers of a rank that is advised: few machines have more cores for each device."""


@dataclass(frozen=True)
class Loading:
    """Speed of the data loading on this machine, and the speed that a run needs."""

    examples_per_second: float
    """Number of examples that one thread prepares in a second."""
    fill: float
    """Share of the computed tokens that are real; the rest is padding."""
    num_workers: int
    """Workers of each rank."""
    needed_by_rank: float | None = None
    """Examples per second for one rank; None: the time of a step is unknown."""
    ranks_of_machine: int = 1
    needed_by_machine: float | None = None
    """Examples per second for the ranks of one machine."""
    keeps_up: bool | None = None
    """True if the workers of a rank prepare examples as fast as it needs them, with a core for each."""
    remedies: tuple[str, ...] = ()
    """Ways to prepare examples faster, if that is needed."""

    def compared(self, config: RunConfig, source: BatchSource, needed_by_rank: float, local_ranks: int) -> Loading:
        """Return a copy that also has the speed that a run with `local_ranks` ranks on each machine needs."""
        keeps_up, remedies = self.examples_per_second * self.num_workers >= needed_by_rank, list[str]()
        if not keeps_up and "num_workers" in type(config.data).model_fields:
            num_workers = math.ceil(needed_by_rank / self.examples_per_second)
            if num_workers <= _MAX_WORKERS:
                remedies.append(f"data.workers=processes data.num_workers={num_workers}")
        if not keeps_up and source.faster_loading is not None:
            remedies.append(source.faster_loading)
        return replace(
            self,
            needed_by_rank=needed_by_rank,
            ranks_of_machine=local_ranks,
            needed_by_machine=needed_by_rank * local_ranks,
            keeps_up=keeps_up,
            remedies=tuple(remedies),
        )


def measure_loading(config: RunConfig, loader: Loader, objective: AnyObjective) -> Loading:
    """Measure for about two seconds how fast microbatches of the first steps are prepared."""
    batch_size = loader.batch_size
    size = min(config.data.microbatch_size or batch_size, batch_size, _MAX_BUILT)
    first = loader.global_records(loader.first_step)
    loader.source.build(first.take(slice(0, 1)))  # opens files and imports libraries
    num_examples = tokens = slots = 0
    seconds = 0.0
    for step in measured_steps(loader):
        began = time.perf_counter()
        batch = loader.source.build(loader.global_records(step).take(slice(0, size)))
        seconds += time.perf_counter() - began
        cost = objective.cost(batch)
        num_examples, tokens, slots = num_examples + cost.examples, tokens + cost.tokens, slots + cost.slots
        if seconds > _MEASURING_SECONDS:
            break
    return Loading(num_examples / seconds, tokens / max(slots, 1), max(1, config.data.loader_workers[1]))


def measured_steps(loader: Loader) -> range:
    """Return the first steps, with at most `MAX_MEASURED` examples."""
    return range(loader.first_step, loader.first_step + max(1, MAX_MEASURED // loader.batch_size))
