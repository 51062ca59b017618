"""Embed every row of a set exactly once, spread over ranks.

Dimensions: N rows, B rows of a batch, D width of the embeddings.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretrainkit.data import prefetch
from pretrainkit.dist.env import World
from pretrainkit.training.objective import HostBatch

BuildRows = Callable[[NDArray[np.int64]], HostBatch]
"""The batch of some rows, on the host; called from several threads at once."""
Forward = Callable[[dict[str, Tensor]], Tensor]
"""A batch on the device to its embeddings (B, D)."""


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

    Args:
        build: Makes the batch of some rows.
        forward: Embeds it.
        num_rows: N, at least 1.
        batch_size: Rows of a forward pass.
        world: The ranks.
        num_threads: Build batches ahead in so many threads; 0: in this one.
    """
    num_batches = -(-num_rows // batch_size)
    num_rounds = -(-num_batches // world.world_size)
    mine = range(world.rank, world.rank + num_rounds * world.world_size, world.world_size)

    def rows_of(number: int) -> NDArray[np.int64]:
        start = min(number, num_batches - 1) * batch_size
        return np.arange(start, min(start + batch_size, num_rows))

    batches = _ahead(lambda number: build(rows_of(number)), mine, num_threads)
    for number, host_batch in zip(mine, batches, strict=True):
        batch = {name: torch.from_numpy(array).to(world.device) for name, array in host_batch.items()}
        vectors_BD = forward(batch).float()
        start = number * batch_size
        is_mine = number < num_batches
        rows = slice(start, min(start + batch_size, num_rows)) if is_mine else slice(0, 0)
        yield rows, vectors_BD if is_mine else vectors_BD[:0]


def _ahead(build: Callable[[int], HostBatch], numbers: range, num_threads: int) -> Iterator[HostBatch]:
    if num_threads:
        return prefetch.in_threads(build, numbers, num_threads, 2 * num_threads)
    return map(build, numbers)
