"""Evaluation on held-out data, spread over ranks: each metric is a ratio of sums, never a mean of means. Also
embeddings of rows.

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
from pretrainkit.dist.devices import ensure_on
from pretrainkit.dist.env import World
from pretrainkit.errors import DataError
from pretrainkit.training.objective import AnyObjective, HostBatch
from pretrainkit.training.precision import Precision

_ALONE = World()
BuildRows = Callable[[NDArray[np.int64]], HostBatch]
"""Function from row indices to a batch on the host. It is called from several threads at once."""
Forward = Callable[[dict[str, Tensor]], Tensor]
"""Function from a batch on the device to its embeddings (B, D)."""


def evaluate(
    objective: AnyObjective,
    model: nn.Module,
    batches: Iterable[HostBatch],
    *,
    precision: Precision,
    world: World = _ALONE,
    num_counted: int | None = None,
) -> dict[str, float]:
    """Return every metric of the objective: its total over all batches and ranks, divided once by its weight over them.

    The model is put into evaluation mode and back; its weights do not change. Raises DataError if no rank had a batch.

    Args:
        batches: Batches of this rank, of any size. With FSDP2 each rank needs equally many, because every forward pass
            gathers parameters; `batches_of_rank` distributes them in this way.
        num_counted: Number of batches that count; later ones only keep this rank in step. None: all.

    Returns:
        Metrics by name, sorted, the same on all ranks. Metrics without weight are left out. Includes `loss`, the
        training loss on this data, if the metrics contain all its terms; a term without weight counts as 0.
    """
    sums_per_batch: list[tuple[list[str], Tensor]] = []
    with evaluation_mode(model), torch.no_grad():
        for host_batch in batches:
            batch = {name: torch.from_numpy(array).to(precision.device) for name, array in host_batch.items()}
            with precision.autocast():
                metrics = objective.metrics(model, batch)
            if len(sums_per_batch) == num_counted:
                continue
            # The sums stay on the device: reading them would make the host wait for every batch.
            parts = [ensure_on(part, precision.device) for term in metrics.values() for part in term]
            sums_per_batch.append((list(metrics), torch.stack(parts)))

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
    """Evaluate on the first `num_examples` of an order. Each is scored once, in the same batches for any world size."""
    numbers, num_counted = batches_of_rank(-(-num_examples // batch_size), world)
    places = (np.arange(number * batch_size, min((number + 1) * batch_size, num_examples)) for number in numbers)
    batches = (build(order.records(place)) for place in places)
    return evaluate(objective, model, batches, precision=precision, world=world, num_counted=num_counted)


def _summed(terms: Iterable[tuple[str, Sequence[float]]]) -> dict[str, tuple[float, float]]:
    """Return total and weight of each metric, added up in the order of the terms."""
    sums: dict[str, tuple[float, float]] = {}
    for name, (total, weight) in terms:
        before = sums.get(name, (0.0, 0.0))
        sums[name] = (before[0] + total, before[1] + weight)
    return sums


def batches_of_rank(num_batches: int, world: World) -> tuple[list[int], int]:
    """Return the indices of the batches of this rank, and how many of them count.

    Batches are the same on any number of ranks, and each counts on one rank. All ranks get equally many: a rank without
    a batch in the last round repeats the last batch, which does not count.
    """
    turns = range(world.rank, -(-num_batches // world.world_size) * world.world_size, world.world_size)
    return [min(turn, num_batches - 1) for turn in turns], sum(turn < num_batches for turn in turns)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Use evaluation mode while the context is active, then restore the mode of every module, including frozen ones."""
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
    """Return all embeddings, float32 (N, D) on the device, the same on every rank. Every rank must call it.

    The arguments are those of `forward_batches`.
    """
    embeddings: Tensor | None = None
    for rows, vectors_BD in forward_batches(
        build, forward, num_rows, batch_size=batch_size, world=world, num_threads=num_threads
    ):
        if embeddings is None:
            embeddings = torch.zeros(num_rows, vectors_BD.shape[1], device=world.device)
        embeddings[rows] = vectors_BD
    assert embeddings is not None, "there is nothing to embed"
    return world.all_reduce_(embeddings)  # every row is zero on all ranks except one


@torch.no_grad()
def forward_batches(
    build: BuildRows, forward: Forward, num_rows: int, *, batch_size: int, world: World, num_threads: int = 0
) -> Iterator[tuple[slice, Tensor]]:
    """Yield this rank's rows and their embeddings, float32 (B, D), batch by batch.

    Batches are cut independently of the number of ranks, so each row is in the same batch on any number of ranks, and
    distributed in turn. If their number is not a multiple of the ranks, some ranks repeat the last batch and yield no
    rows for it, because with FSDP2 every rank must make equally many forward passes.

    `num_rows` is at least 1. Batches are built in advance by `num_threads` threads; 0: in the current thread.
    """
    mine, num_counted = batches_of_rank(-(-num_rows // batch_size), world)

    def rows_of(turn: int) -> slice:
        return slice(mine[turn] * batch_size, min((mine[turn] + 1) * batch_size, num_rows))

    def build_turn(turn: int) -> HostBatch:
        rows = rows_of(turn)
        return build(np.arange(rows.start, rows.stop))

    turns = range(len(mine))
    batches = (
        prefetch.in_threads(build_turn, turns, num_threads, 2 * num_threads) if num_threads else map(build_turn, turns)
    )
    for turn, host_batch in zip(turns, batches, strict=True):
        batch = {name: torch.from_numpy(array).to(world.device) for name, array in host_batch.items()}
        vectors_BD = forward(batch).float()
        is_counted = turn < num_counted
        yield rows_of(turn) if is_counted else slice(0, 0), vectors_BD if is_counted else vectors_BD[:0]
