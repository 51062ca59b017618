"""Held-out data once, spread over ranks: metrics as ratios of sums, never a mean of means; embeddings of rows.

Dimensions: N rows, B rows of a batch, D width of the embeddings.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.data import prefetch
from pretrainkit.data.order import Order
from pretrainkit.data.source import Records
from pretrainkit.dist.devices import kept_on
from pretrainkit.dist.env import World
from pretrainkit.errors import DataError
from pretrainkit.training.objective import AnyObjective, HostBatch
from pretrainkit.training.precision import Precision

_ALONE = World()
BuildRows = Callable[[NDArray[np.int64]], HostBatch]
"""The batch of some rows, on the host; called from several threads at once."""
Forward = Callable[[dict[str, Tensor]], Tensor]
"""A batch on the device to its embeddings (B, D)."""


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
    Raises DataError where no rank had a batch.

    The model is put into evaluation mode and back; its weights do not change.

    Args:
        batches: Of this rank, however large; with FSDP2 equally many on each rank, as every forward pass gathers
            parameters. `dealt` gives them out so.
        num_counted: Number of batches that count; the others keep this rank in step. None: all.

    Returns:
        Metric name to value, sorted by name, the same on all ranks; what nothing was counted of is left out. With
        `loss`: the training loss on this data, if the metrics hold all its terms; one without weight counts as 0.
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


def evaluate_records(
    objective: AnyObjective,
    model: nn.Module,
    build: Callable[[Records], HostBatch],
    order: Order,
    num_examples: int,
    *,
    batch_size: int,
    precision: Precision,
    world: World,
) -> dict[str, float]:
    """`evaluate` on the first `num_examples` of an order: each scored once, in the same batches on any world."""
    numbers, num_counted = dealt(-(-num_examples // batch_size), world)
    places = (np.arange(number * batch_size, min((number + 1) * batch_size, num_examples)) for number in numbers)
    batches = (build(order.records(place)) for place in places)
    return evaluate(objective, model, batches, precision=precision, world=world, num_counted=num_counted)


def _summed(terms: Iterable[tuple[str, Sequence[float]]]) -> dict[str, tuple[float, float]]:
    """Total and weight of each metric, added up in the order of the terms."""
    found: dict[str, tuple[float, float]] = {}
    for name, (total, weight) in terms:
        before = found.get(name, (0.0, 0.0))
        found[name] = (before[0] + total, before[1] + weight)
    return found


def dealt(num_batches: int, world: World) -> tuple[list[int], int]:
    """Return the indices of the batches of this rank, and how many of them count.

    Batches are the same on any number of ranks, each counts on one rank, and every rank takes equally many: a rank
    without a batch in the last round repeats the last batch, without counting it.
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


@torch.no_grad()
def embed_rows(
    build: BuildRows, forward: Forward, num_rows: int, *, batch_size: int, world: World, num_threads: int = 0
) -> Tensor:
    """All embeddings, float32 (N, D) on the device, the same on every rank: a collective.

    The arguments are those of `forward_batches`.
    """
    found: Tensor | None = None
    for rows, vectors_BD in forward_batches(
        build, forward, num_rows, batch_size=batch_size, world=world, num_threads=num_threads
    ):
        if found is None:
            found = torch.zeros(num_rows, vectors_BD.shape[1], device=world.device)
        found[rows] = vectors_BD
    assert found is not None, "there is nothing to embed"
    return world.all_reduce_(found)  # every row is zero on all ranks but one


@torch.no_grad()
def forward_batches(
    build: BuildRows, forward: Forward, num_rows: int, *, batch_size: int, world: World, num_threads: int = 0
) -> Iterator[tuple[slice, Tensor]]:
    """This rank's share of the rows and their embeddings, float32 (B, D), batch by batch.

    Batches are cut without regard to the number of ranks, so that a row stands among the same others on any number of
    them, and dealt out in turn. Where their number is not a multiple of the ranks, some ranks do the last one once
    more and get no rows for it: with FSDP2 every rank must make equally many forward passes.

    `num_rows` is at least 1. Batches are built ahead in `num_threads` threads; 0: in this one.
    """
    mine, num_counted = dealt(-(-num_rows // batch_size), world)

    def rows_of(turn: int) -> slice:
        return slice(mine[turn] * batch_size, min((mine[turn] + 1) * batch_size, num_rows))

    def of_turn(turn: int) -> HostBatch:
        rows = rows_of(turn)
        return build(np.arange(rows.start, rows.stop))

    turns = range(len(mine))
    batches = prefetch.in_threads(of_turn, turns, num_threads, 2 * num_threads) if num_threads else map(of_turn, turns)
    for turn, host_batch in zip(turns, batches, strict=True):
        batch = {name: torch.from_numpy(array).to(world.device) for name, array in host_batch.items()}
        vectors_BD = forward(batch).float()
        is_counted = turn < num_counted
        yield rows_of(turn) if is_counted else slice(0, 0), vectors_BD if is_counted else vectors_BD[:0]
