"""The parallel layout of a model on any number of ranks, tried in one process without their devices.

The model lies on "meta", and the collectives are those of torch's fake process group, which do nothing: what is tried
is whether DDP, FSDP2 and HSDP take the model, and how large the part of a rank is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import parallelize
from pretrainkit.training.optimizers.parameters import local_tensors
from pretrainkit.training.run import ParallelConfig


def numbers_per_rank(build: Callable[[], nn.Module], config: ParallelConfig, world_size: int) -> dict[int, int]:
    """Numbers in the parameters that the first and the last rank keep between steps; the others keep no more than the
    first. `build` makes the model on "meta". Raises RuntimeError where this process has a process group already."""
    found = {}
    for rank in sorted({0, world_size - 1}):
        with _fake_world(rank, world_size) as world:
            model = parallelize(build(), config, world, torch.float32)
            found[rank] = sum(tensor.numel() for tensor in local_tensors(list(model.parameters())))
    return found


@contextmanager
def _fake_world(rank: int, world_size: int) -> Iterator[World]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if world_size == 1:
        yield World(device=torch.device("meta"))
        return
    if dist.is_initialized():
        raise RuntimeError("a dry run makes a process group of its own, and this process is in one")
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield World(rank, world_size, device=torch.device("meta"), backend="fake")
    finally:
        dist.destroy_process_group()
