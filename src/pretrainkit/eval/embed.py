"""Embed every row of a set exactly once, spread over ranks.

Dimensions: N rows, B rows of a batch, D width of the embeddings.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.data import prefetch
from pretrainkit.dist.env import World
from pretrainkit.eval.evaluator import dealt
from pretrainkit.training.objective import HostBatch

BuildRows = Callable[[NDArray[np.int64]], HostBatch]
"""The batch of some rows, on the host; called from several threads at once."""
Forward = Callable[[dict[str, Tensor]], Tensor]
"""A batch on the device to its embeddings (B, D)."""


@dataclass(frozen=True)
class ImageEncoder:
    """The part of a trained model that turns images into features, for probing."""

    module: nn.Module
    """What computes; it is not to be changed."""
    encode: Callable[[Tensor], Tensor]
    """uint8 (B, 3, H, W) on the module's device to features (B, F), before any projection or normalisation."""
    image_size: int
    """Pixels of each side that it is made for."""


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
