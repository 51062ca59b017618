"""Layer-wise decay of the learning rate, beside that of timm."""

import pytest
import torch

from pretrainkit.training.optimizers.build import build_optimizer, layer_scales
from pretrainkit.training.optimizers.config import OptimizerConfig, ParameterGroup
from support.clip_models import random_model, run_config, text, tiny_timm, vit

DECAY = 0.7


def test_an_encoder_of_timm_has_the_factors_of_timm():
    """timm counts the last block as one with the final norm, and BEiT, MAE and we do not."""
    pytest.importorskip("timm")
    from timm.optim import param_groups_layer_decay

    model = random_model(run_config(tiny_timm(), text()))
    groups = param_groups_layer_decay(model.image.encoder, layer_decay=DECAY)
    theirs = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    scales = layer_scales(model, DECAY)
    image = {name: one for name, one in model.named_parameters() if name.startswith("image.")}
    expected = {
        name: theirs[id(one)] if name.startswith("image.encoder.norm") else DECAY * theirs[id(one)]
        for name, one in image.items()
    }
    assert {name: scales[name] for name in image} == pytest.approx(expected)


def test_each_tower_counts_its_own_blocks_and_heads_learn_fully():
    model = random_model(run_config(vit(num_layers=3), text(num_layers=2)))
    scales = layer_scales(model, DECAY)
    expected = {
        "image.encoder.class_token": 4,
        "image.encoder.patch.weight": 4,
        "image.encoder.layers.0.attention.qkv.weight": 3,
        "image.encoder.layers.2.feed_forward.up.bias": 1,
        "image.encoder.norm_after.weight": 0,
        "text.encoder.token.weight": 3,
        "text.encoder.layers.0.attention.qkv.weight": 2,
        "text.encoder.norm_after.bias": 0,
        "image_projection.linear.weight": 0,
        "temperature.log_scale": 0,
    }
    assert {name: scales[name] for name in expected} == {name: DECAY**power for name, power in expected.items()}


def test_without_blocks_matrices_are_one_block_below_the_head():
    class Flat(torch.nn.Linear):
        def blocks(self) -> list[torch.nn.Module]:
            return []

    assert layer_scales(Flat(3, 2), DECAY) == {"weight": DECAY, "bias": DECAY}


def test_updates_are_scaled_and_groups_multiply():
    model = random_model(run_config(vit(num_layers=2), text(num_layers=2)))
    config = OptimizerConfig(
        name="sgd",
        peak_lr=1.0,
        momentum=0,
        weight_decay=0,
        layer_decay=0.5,
        groups=(ParameterGroup(pattern="^text", lr_scale=0.1),),
    )
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, config)
    for group in optimizer.param_groups:
        group["lr"] = config.peak_lr * group["lr_scale"]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    moved = {name: (before[name] - parameter.detach()).mean().item() for name, parameter in model.named_parameters()}
    assert moved["image.encoder.layers.0.attention.qkv.weight"] == pytest.approx(0.25, rel=1e-4)
    assert moved["text.encoder.token.weight"] == pytest.approx(0.0125, rel=1e-4)
    assert moved["text_projection.linear.weight"] == pytest.approx(0.1, rel=1e-4)
