"""Run by test_clip_model_ranks.py on two processes: the model under DDP and FSDP2 has the gradient of one process."""

import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch import Tensor

import pretrainkit.dist.parallelize as parallelize_module
from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import gather_root_weights, parallelize, unwrap
from pretrainkit.recipes.clip.config import ClipObjectiveConfig, TemperatureConfig
from pretrainkit.recipes.clip.recipe import RECIPE
from pretrainkit.training.run import ParallelConfig
from support.clip_models import captions, images, run_config, text, vit

CONFIGS = {
    "siglip": run_config(
        vit(pool="mean"), text(causal=False, pool="mean"), objective=ClipObjectiveConfig(loss="siglip")
    ),
    "locked": run_config(vit(trainable=False), text(num_trainable_layers=1)),
    "constant": run_config(temperature=TemperatureConfig(kind="constant")),
}


def gradients(config, world: World, strategy: str | None, **settings) -> dict[str, Tensor | None]:
    """Return the gradients of a sum over four pairs. Without a `strategy` all are on one process."""
    torch.manual_seed(0)
    model = RECIPE.build_model(config)
    called, rows = model, slice(0, 4)
    if strategy is not None:
        called = parallelize(model, ParallelConfig(strategy=strategy, **settings), world, torch.float32)
        rows = slice(2 * world.rank, 2 * world.rank + 2)
    called.train()
    ids, num_tokens = captions((4, 9, 2, 6))
    found = called(images(4)[rows], ids[rows], num_tokens[rows])
    gather_root_weights(called)
    factor = 1 if strategy is None else world.world_size  # both average over ranks
    loss = (model.logit_scale() * found["image"] * found["text"].square()).sum()
    if model.logit_bias is not None:
        loss = loss + model.logit_bias.sum() * len(found["text"])
    (factor * loss).backward()
    own = {name: parameter.grad for name, parameter in unwrap(model).named_parameters()}
    model.project_temperature()
    return {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad for name, grad in own.items()}


def scale_is_not_rounded(world: World) -> None:
    """FSDP2 gathers weights in bfloat16 on a GPU: 1 / 0.0703 would become another number there."""
    value = 0.0703
    for kind in ("parameter", "log_parameter"):
        config = run_config(temperature=TemperatureConfig(kind=kind, value=value))
        torch.manual_seed(0)
        with mock.patch.object(parallelize_module, "gathers_in", lambda dtype, world: dtype != torch.float32):
            model = parallelize(RECIPE.build_model(config), ParallelConfig(strategy="fsdp2"), world, torch.bfloat16)
        ids, num_tokens = captions((4, 9))
        found = model(images(2), ids, num_tokens)
        gather_root_weights(model)
        assert next(model.image_projection.parameters()).dtype == torch.bfloat16
        scale = model.logit_scale()
        assert abs(scale.item() * value - 1) < 1e-6, scale
        (scale * found["image"].float() * found["text"].float().square()).sum().backward()
        for parameter in model.temperature.parameters():
            assert hasattr(parameter, "full_tensor"), "it is whole after the backward pass"
            assert parameter.grad is not None
            assert parameter.grad.full_tensor().abs().item() > 0


def main() -> None:
    """Raise an error if a gradient differs."""
    dist.init_process_group("gloo")
    world = World(rank=dist.get_rank(), world_size=2, local_rank=dist.get_rank(), backend="gloo")
    for kind, config in CONFIGS.items():
        expected = gradients(config, world, None)
        for strategy in ("ddp", "fsdp2"):
            for name, gradient in gradients(config, world, strategy, activation_checkpointing=True).items():
                assert (gradient is None) == (expected[name] is None), f"{kind} {strategy} {name}"
                if gradient is not None:
                    where = f"{kind} {strategy} {name}"
                    torch.testing.assert_close(
                        gradient, expected[name], rtol=1e-4, atol=1e-5, msg=lambda found, at=where: f"{at}: {found}"
                    )
    scale_is_not_rounded(world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
