"""Metrics on held-out data as ratios of sums: never a mean of means."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from pretrainkit.dist.devices import kept_on
from pretrainkit.dist.env import World
from pretrainkit.errors import DataError
from pretrainkit.training.objective import AnyObjective, HostBatch
from pretrainkit.training.precision import Precision

_ALONE = World()


def evaluate(
    objective: AnyObjective,
    model: nn.Module,
    batches: Iterable[HostBatch],
    *,
    precision: Precision,
    world: World = _ALONE,
    num_counted: int | None = None,
) -> dict[str, float]:
    """Every metric of the objective: its total over all batches and ranks divided by its weight over them, once.

    The model is put into evaluation mode and back; its weights do not change.

    Args:
        batches: Of this rank, however large; with FSDP2 equally many on each rank, as every forward pass gathers
            parameters. `dealt` gives them out so.
        num_counted: Only so many of the batches count; the others keep this rank in step. None: all.

    Returns:
        Metric name to value, sorted by name, the same on all ranks; what nothing was counted of is left out. With
        `loss`: the training loss on this data, if the metrics hold all its terms; one without weight counts as 0.

    Raises:
        DataError: No rank had a batch.
    """
    sums_per_batch: list[tuple[list[str], Tensor]] = []
    with evaluation_mode(model), torch.no_grad():
        for host_batch in batches:
            batch = {name: torch.from_numpy(array).to(precision.device) for name, array in host_batch.items()}
            with precision.autocast():
                found = objective.metrics(model, batch)
            if len(sums_per_batch) == num_counted:
                continue
            # Stays on the device: reading it would make the host wait for every batch.
            parts = [kept_on(part, precision.device) for term in found.values() for part in term]
            sums_per_batch.append((list(found), torch.stack(parts)))

    mine = _summed(chain.from_iterable(zip(names, sums.view(-1, 2).tolist()) for names, sums in sums_per_batch))
    everyone = world.gather_objects(mine)
    if not any(everyone):
        raise DataError("there is nothing to evaluate: no batch of held-out examples\n  check data.valid")
    totals = _summed(chain.from_iterable(theirs.items() for theirs in everyone))
    values = {name: total / weight for name, (total, weight) in totals.items() if weight}
    if "loss" not in values and objective.scales.keys() <= totals.keys():
        values["loss"] = sum(scale * values.get(name, 0.0) for name, scale in objective.scales.items())
    return dict(sorted(values.items()))


def _summed(terms: Iterable[tuple[str, Sequence[float]]]) -> dict[str, tuple[float, float]]:
    """Total and weight of each metric, added up in the order of the terms."""
    found: dict[str, tuple[float, float]] = {}
    for name, (total, weight) in terms:
        before = found.get(name, (0.0, 0.0))
        found[name] = (before[0] + total, before[1] + weight)
    return found


def dealt(num_batches: int, world: World) -> tuple[list[int], int]:
    """Which of all batches this rank takes, and how many of those count.

    Batches are the same on any number of ranks, each counts on one rank, and every rank takes equally many: who has
    none left in the last round goes through the last batch once more, without counting it.
    """
    turns = range(world.rank, -(-num_batches // world.world_size) * world.world_size, world.world_size)
    return [min(turn, num_batches - 1) for turn in turns], sum(turn < num_batches for turn in turns)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within; after it every module is in its own mode again, frozen ones too."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training
