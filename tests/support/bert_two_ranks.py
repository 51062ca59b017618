"""Run by test_bert_two_ranks.py on two processes: the gradient of a global batch under DDP and FSDP2, and on one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor

from pretrainkit.dist.env import World, init_world
from pretrainkit.dist.parallelize import parallelize
from pretrainkit.recipes.bert.objective import BertObjective
from pretrainkit.recipes.bert.recipe import RECIPE
from pretrainkit.training.run import ParallelConfig
from support.bert_batches import WIDTH, modern_config, packed_batch, row_batch, run_config


def gradients(strategy: str | None, config, world: World, *, is_packed: bool = False) -> dict[str, Tensor]:
    """Return the gradients of the mean losses of a batch of four examples with unequal numbers of predictions. Without
    a `strategy` all are on one process.

    With `is_packed` the first rank has all of them, and the second a microbatch without any.
    """
    torch.manual_seed(0)
    model = RECIPE.build_model(config)
    objective = BertObjective(config)
    batch = row_batch([5, WIDTH, 9, 14])
    weights = objective.weights(batch)
    called = model
    if strategy is not None:
        called = parallelize(model, ParallelConfig(strategy=strategy), world, torch.float32)
        if is_packed:
            batch = packed_batch(row_batch([]) if world.rank else batch, room=WIDTH)
        else:
            batch = {name: tensor[2 * world.rank : 2 * world.rank + 2] for name, tensor in batch.items()}
    terms = objective.losses(called, batch)
    factor = 1 if strategy is None else world.world_size  # both average over ranks
    (factor * sum(term.total / weights[name] for name, term in terms.items())).backward()
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        found[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return found


def main() -> None:
    """Raise an error if a gradient differs."""
    world = init_world("cpu")
    for config in (run_config(), modern_config()):
        expected = gradients(None, config, world)
        for strategy in ("ddp", "fsdp2"):
            for is_packed in (False, True):
                for name, gradient in gradients(strategy, config, world, is_packed=is_packed).items():
                    where = f"{strategy} {name} is_packed={is_packed}"
                    torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6, msg=where)
    world.close()


if __name__ == "__main__":
    main()
