"""A plan needs no data, and two periods of blocks say what all of them hold."""

from typing import Any

import pytest

import pretrainkit as pk
from pretrainkit.api import make_plan
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.running.plan import _host_batch, _memory, _memory_of_depth, _of_size


@pytest.mark.parametrize("source", ["bert/tiny", "t5/micro", "pixel/tiny", "clip/tiny", "image_tokenizer/tiny"])
def test_a_plan_without_data_says_what_it_assumes(source: str) -> None:
    plan = make_plan(pk.load_config(source))
    assert plan.assumed
    assert plan.flops_per_step > 0
    assert plan.memory["ddp"].activations > 0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("bert/mini", []),
        ("bert/mini", ["model.arch=modern", "model.num_layers=12"]),
        ("t5/mini", ["model.num_decoder_layers=5"]),
        ("pixel/tiny", ["model.decoder_num_layers=3"]),
    ],
)
def test_two_periods_of_blocks_tell_the_whole(source: str, words: list[str]) -> None:
    recipe, config = _assumed(source, words)
    config = _of_size(config, 2)
    batch = _host_batch(recipe, config, 2, is_assumed=True)
    short = _memory_of_depth(recipe, config, batch, "h200", config.optimizer)
    whole = _memory(recipe, config, batch, "h200", config.optimizer)
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(short, name) == getattr(whole, name)
    assert short.activations == pytest.approx(whole.activations, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        f"{recipe}/{name}"
        for recipe in ("bert", "clip", "fourm", "image_tokenizer", "pixel", "t5")
        for name in find_recipe(recipe).presets
    ],
)
def test_every_preset_for_pretraining_is_planned_without_data(source: str) -> None:
    plan = make_plan(pk.load_config(source))
    assert plan.assumed
    assert plan.memory["ddp"].activations > 0


def _assumed(source: str, words: list[str]) -> tuple[Any, Any]:
    config = pk.load_config(source, words)
    recipe = find_recipe(config.recipe)
    return recipe, recipe.without_data(config)[0]
