"""Run by test_t5_two_ranks.py on two processes: the gradient of a global batch under DDP and FSDP2, and on one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch import Tensor

from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import parallelize
from pretrainkit.recipes.t5.decoding_config import DecodingConfig
from pretrainkit.recipes.t5.objective import T5Objective
from pretrainkit.recipes.t5.predictor import Predictor
from pretrainkit.training.run import ParallelConfig
from support.t5_batches import model_config, packed_batch, random_model, run_config


def gradients(strategy: str | None, config, world: World, *, is_lopsided: bool = False) -> dict[str, Tensor]:
    """Return the gradients of a batch of two packed rows. Without a `strategy` both are on one process; `is_lopsided`:
    the second rank has no row."""
    model, objective = random_model(config.model), T5Objective(config)
    batch = packed_batch()
    weights = objective.weights(batch)
    called = model
    if strategy is not None:
        called = parallelize(model, ParallelConfig(strategy=strategy), world, torch.float32)
        if is_lopsided:
            batch = {name: tensor * (1 - world.rank) for name, tensor in batch.items()}
        else:
            batch = {name: tensor[world.rank : world.rank + 1] for name, tensor in batch.items()}
    terms = objective.losses(called, batch)
    factor = 1 if strategy is None else world.world_size  # both average over ranks
    (factor * sum(terms[name].total / weight for name, weight in weights.items())).backward()
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        found[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return found


def check_answers(config, world: World) -> None:
    """A spread model answers and scores as one process does, also where ranks have unequally many examples."""
    given = [{"inputs": [5, 6, number], "targets": [7, number, 1]} for number in range(2, 7)]
    decoding = DecodingConfig(max_length=5)
    alone = Predictor(config, random_model(config.model), decoding)
    ids, scores = alone.predict(given), alone.score(given)
    for strategy in ("ddp", "fsdp2"):
        spread = parallelize(random_model(config.model), ParallelConfig(strategy=strategy), world, torch.float32)
        predictor = Predictor(config, spread, decoding)
        mine = slice(0, 4) if world.rank == 0 else slice(4, 5)
        assert [one.tolist() for one in predictor.predict(given[mine])] == [one.tolist() for one in ids[mine]]
        torch.testing.assert_close(predictor.score(given[mine]), scores[mine], rtol=1e-5, atol=1e-5)


def main() -> None:
    """Raises where a gradient differs."""
    dist.init_process_group("gloo")
    world = World(rank=dist.get_rank(), world_size=2, local_rank=dist.get_rank(), backend="gloo")
    for family in ("1.0", "1.1", "umt5"):
        config = run_config(model_config(family), normalize_by="real_target_tokens", label_smoothing=0.1, z_loss=0.01)
        expected = gradients(None, config, world)
        for strategy in ("ddp", "fsdp2"):
            for is_lopsided in (False, True):
                for name, gradient in gradients(strategy, config, world, is_lopsided=is_lopsided).items():
                    where = f"{family} {strategy} {name} is_lopsided={is_lopsided}"
                    torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6, msg=where)
        check_answers(config, world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
