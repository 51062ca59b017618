"""Training of the toy model, and the script of the two processes in `test_clip_two_ranks.py`.

Arguments: the folder for the results. Its place comes from the environment, as from torchrun.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pretrainkit.data.loader import Loader
from pretrainkit.dist.env import World, init_world
from pretrainkit.dist.parallelize import averages_gradients, gradient_sync, parallelize
from pretrainkit.recipes.clip.config import ClipRun
from pretrainkit.recipes.clip.objective import ClipObjective
from pretrainkit.recipes.clip.source import build_order
from pretrainkit.training.accumulate import accumulate, sum_over_ranks
from pretrainkit.training.folder import RunFolder
from pretrainkit.training.precision import Precision
from pretrainkit.training.run import CheckpointConfig, LogConfig, ParallelConfig
from pretrainkit.training.trainer import Trainer
from pretrainkit.training.watch import Watcher
from support.toy_pairs import ToyEncoder, ToyPairs, batch_of, cut, gradients, toy_config

FLOAT32 = Precision(device=torch.device("cpu"), compute_dtype=torch.float32, uses_tf32=False, scaler=None)
GRADIENTS = [
    {},
    {"gather_gradient": False},
    {"duplicates": "ignore"},
    {"loss": "siglip", "duplicates": "positives"},
    {"loss": "siglip"},
    {"mixup": {}, "label_smoothing": 0.1},
]
STRATEGIES = ("ddp", "fsdp2")
RUNS = [
    ({"mixup": {}}, {"order": "debias", "microbatch_size": 3}, "ddp"),
    ({"mixup": {}}, {"order": "sequential", "microbatch_size": 3}, "fsdp2"),
    ({"loss": "siglip"}, {"order": "shuffle"}, "fsdp2"),
]


class Trained(NamedTuple):
    first_step: int
    metrics: dict[str, float]
    parameters: dict[str, Tensor]


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


def train(
    config: ClipRun,
    folder: Path,
    world: World,
    *,
    dropout: float = 0.0,
    watcher: Watcher | None = None,
    resume: bool = False,
) -> Trained:
    """The whole loop, with the toy's model and pairs."""
    source = ToyPairs(config)
    loader = Loader(
        source,
        build_order(config, source.sizes),
        batch_size=config.data.batch_size,
        rank=world.rank,
        world_size=world.world_size,
        microbatch_size=config.data.microbatch_size,
        prefetch=config.data.prefetch,
    )
    config = config.model_copy(update={"log": LogConfig(every_steps=1)})
    torch.manual_seed(1)
    model = ToyEncoder(config.objective.loss, dropout=dropout)
    run = RunFolder(folder)
    if not resume:
        world.on_main(run.prepare)
    trainer = Trainer(config, run, world, model, ClipObjective(config), loader, (), watcher or Watcher())
    if resume:
        assert trainer.restore()
    first_step = trainer.step
    metrics = trainer.fit()
    return Trained(first_step, metrics, {n: whole(p.detach()) for n, p in trainer.plain_model.named_parameters()})


def one_gradient(settings: dict, strategy: str, dtype: torch.dtype, world: World) -> dict[str, object]:
    """Return the gradient of a batch of 12 in microbatches of 4 and 2 on each of two ranks, or the same microbatches on
    one."""
    config = toy_config(settings)
    torch.manual_seed(1)
    model = parallelize(
        ToyEncoder(config.objective.loss).to(dtype), ParallelConfig(strategy=strategy), world, torch.float32
    )
    microbatches = cut(batch_of(config, step=5), [4, 2, 4, 2])
    mine = microbatches if world.world_size == 1 else microbatches[2 * world.rank : 2 * world.rank + 2]
    terms = accumulate(
        ClipObjective(config),
        model,
        mine,
        precision=FLOAT32,
        world=world,
        gradient_sync=lambda enabled: gradient_sync(model, enabled),
        averages_gradients=averages_gradients(model),
    )
    return {
        "gradients": {name: whole(value) for name, value in gradients(model).items()},
        "terms": {name: tuple(term) for name, term in sum_over_ranks(terms, world).items()},
    }


def checks(world: World, folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for settings in GRADIENTS:
        for strategy in STRATEGIES:
            for dtype in (torch.float64, torch.float32):
                found[f"gradient {settings} {strategy} {dtype}"] = one_gradient(settings, strategy, dtype, world)
    for number, (objective, data, strategy) in enumerate(RUNS):
        config = toy_config(
            objective,
            data,
            num_steps=6,
            parallel=ParallelConfig(strategy=strategy),
            checkpoint=CheckpointConfig(asynchronous=False),
        )
        trained = train(config, folder / f"run-{world.world_size}-{number}", world)
        kept = {n: v for n, v in trained.metrics.items() if "loss" in n or "accuracy" in n or n == "temperature"}
        found[f"run {number}"] = {"parameters": trained.parameters, "metrics": kept}
    return found


if __name__ == "__main__":
    world = init_world("cpu")
    torch.save(checks(world, Path(sys.argv[1])), Path(sys.argv[1]) / f"rank-{world.rank}.pt")
    world.close()
