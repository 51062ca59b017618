"""The sigmoid loss with blocks that are sent from rank to rank, beside the one that gathers, in one of several ranks.

Argument: the folder for the results. Its place comes from the environment, as from torchrun.
"""

import sys
from pathlib import Path
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretrainkit.dist.env import World, init_world
from pretrainkit.recipes.clip.objective import ClipObjective
from pretrainkit.training.accumulate import accumulate, sum_over_ranks
from support.clip_two_ranks import FLOAT32
from support.toy_pairs import ToyEncoder, batch_of, cut, gradients, toy_config

WIDTH, PER_RANK = 8, 18
"""Width of the embeddings; pairs of a rank."""


class MostRows(TorchDispatchMode):
    """The largest number of embeddings in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.ndim == 2 and tensor.shape[1] == WIDTH:
                self.rows = max(self.rows, len(tensor))
        return made


def step(world: World, *, gathers: bool) -> dict[str, object]:
    config = toy_config({"loss": "siglip"})
    torch.manual_seed(1)
    model = ToyEncoder("siglip", width=WIDTH).double()
    with torch.no_grad():
        model.logit_bias.fill_(-1.5)
    total = PER_RANK * world.world_size
    microbatches = cut(batch_of(config, step=5, num=total), [12, 6] * world.world_size)
    mine = microbatches[2 * world.rank : 2 * world.rank + 2]
    objective, most = ClipObjective(config), MostRows()
    patched = mock.patch.object(ClipObjective, "exchanged", return_value=None)
    with patched if gathers else mock.MagicMock(), most:
        terms = accumulate(objective, model, mine, precision=FLOAT32, world=world)
    found = {name: world.all_reduce_(value.clone()) for name, value in gradients(model).items()}
    summed = {name: tuple(term) for name, term in sum_over_ranks(terms, world).items()}
    return {"gradients": found, "terms": summed, "rows": most.rows}


if __name__ == "__main__":
    world = init_world("cpu")
    results = {"blocks": step(world, gathers=False), "gathered": step(world, gathers=True)}
    torch.save(results, Path(sys.argv[1]) / f"rank-{world.rank}.pt")
    world.close()
