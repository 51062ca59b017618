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


@torch.no_grad()
def embed_rows(
    build: BuildRows,
    forward: Callable[[dict[str, Tensor]], Tensor],
    num_rows: int,
    *,
    batch_size: int,
    world: World,
    num_threads: int = 0,
) -> Tensor:
    """All embeddings, float32 (N, D) on the device, the same on every rank: a collective.

    Batches are cut without regard to the number of ranks, so that a row stands among the same others on any number of
    them, and dealt out in turn. Where their number is not a multiple of the ranks, some ranks do the last one once
    more and its result is dropped: with FSDP2 every rank must make equally many forward passes.

    Args:
        build: Makes the batch of some rows.
        forward: A batch on the device to its embeddings (B, D).
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

    found: Tensor | None = None
    batches = _ahead(lambda number: build(rows_of(number)), mine, num_threads)
    for number, host_batch in zip(mine, batches, strict=True):
        batch = {name: torch.from_numpy(array).to(world.device) for name, array in host_batch.items()}
        vectors_BD = forward(batch).float()
        if found is None:
            found = torch.zeros(num_rows, vectors_BD.shape[1], device=world.device)
        if number < num_batches:
            rows = rows_of(number)
            found[int(rows[0]) : int(rows[-1]) + 1] = vectors_BD
    assert found is not None, "there is nothing to embed"
    return world.all_reduce_(found)  # every row is zero on all ranks but one


def _ahead(build: Callable[[int], HostBatch], numbers: range, num_threads: int) -> Iterator[HostBatch]:
    if num_threads:
        return prefetch.in_threads(build, numbers, num_threads, 2 * num_threads)
    return map(build, numbers)
