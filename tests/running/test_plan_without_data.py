"""A plan needs no data, and agrees with a real step of the same model, for any recipe."""

import re
import subprocess
import sys
from typing import Any

import pytest
import torch

import pretrainkit as pk
from pretrainkit.api import make_plan
from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import parallelize
from pretrainkit.nn.foreign import without_weights
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.running.plan import host_batch_of, with_batch_size
from pretrainkit.training.fake_step import StepMemory, faked, step_memory
from pretrainkit.training.precision import Precision

pytestmark = pytest.mark.slow

RECIPES = ("bert", "clip", "fourm", "glue", "image_tokenizer", "pixel", "t5")
FOREIGN = [
    "model.image={kind: timm, name: vit_tiny_patch16_224, pretrained: false}",
    "model.text={kind: huggingface, pretrained: false, architecture: {model_type: bert, vocab_size: 99, "
    "hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 128}}",
    "data.train_transforms=[{op: resize, size: 224}]",
    "data.valid_transforms=[{op: resize, size: 224}]",
]
PERCEPTUAL = [
    "objective.perceptual.weight=1",
    "objective.perceptual.network=vit_tiny_patch16_224",
    "objective.perceptual.weights=random",
    "objective.perceptual.blocks=[1,2]",
]
SMALL_ENCODER = [
    "data.max_seq_length=16",
    "model.encoder_settings={model: {num_layers: 1, decoder_num_layers: 1, hidden_size: 64, num_heads: 2}}",
]
TINY = [
    ("bert/tiny", []),
    ("bert/modern-tiny", []),
    ("t5/micro", []),
    ("t5/micro", ["model.dropout=0.1"]),
    ("pixel/tiny", []),
    ("clip/tiny", []),
    ("clip/tiny", FOREIGN),
    ("fourm/tiny", []),
    ("image_tokenizer/tiny", PERCEPTUAL),
    ("image_tokenizer/tiny-conv", []),
    *((f"glue/pixel-{kind}", SMALL_ENCODER) for kind in ("glue", "parse", "qa", "tags")),
]


@pytest.mark.parametrize(("source", "words"), TINY)
def test_a_step_without_numbers_holds_what_a_real_one_holds(source: str, words: list[str]) -> None:
    recipe, config = _assumed(source, words)
    with torch.device("meta"):
        planned = recipe.build_model(config)
    found, real = (_memory(recipe, config, one) for one in (faked(planned), recipe.build_model(config)))
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(found, name) == getattr(real, name)
    # A real step works on fewer heads at a time, and may compute one number more or less at a time.
    assert found.activations == pytest.approx(real.activations, rel=0.1, abs=50_000)
    assert found.update == pytest.approx(real.update, rel=0.01, abs=64)


def test_blocks_that_are_computed_again_hold_less() -> None:
    words = ["parallel.activation_checkpointing=true", "model.num_layers=6"]
    recipe, config = _assumed("bert/tiny", words)
    with torch.device("meta"):
        planned = recipe.build_model(config)
    alone = config.parallel.model_copy(update={"compile": "off"})
    found = _memory(recipe, config, parallelize(faked(planned), alone, World(), torch.float32))
    assert found == _memory(recipe, config, parallelize(recipe.build_model(config), alone, World(), torch.float32))
    # The head of a tiny model holds most on a GPU, so this one has more layers.
    deep = ["model.num_layers=48", "model.hidden_size=128"]
    kept, again = (make_plan(pk.load_config("bert/tiny", one)).memory["ddp"] for one in (deep, [words[0], *deep]))
    assert again.activations < 0.6 * kept.activations


@pytest.mark.parametrize(("preset", "batch_size", "gib"), [("bert/base", 512, 20.93), ("pixel/base", 64, 13.53)])
def test_a_plan_for_a_gpu_agrees_with_measurements(preset: str, batch_size: int, gib: float) -> None:
    """Peak of torch.cuda.max_memory_allocated in 73 compiled steps on an H200, 27 November 2026, torch 2.11."""
    plan = make_plan(pk.load_config(preset, [f"data.batch_size={batch_size}"]), device="h200")
    assert plan.memory["ddp"].total / 2**30 == pytest.approx(gib, rel=0.05)


def test_a_plan_for_a_gpu_counts_the_bias_of_all_pairs_of_tokens_and_its_gradient() -> None:
    small = "model.hidden_size=64 model.intermediate_size=64 model.head_size=16 model.num_heads=8 model.vocab_size=999"
    lengths = "data.input_length=4096 data.target_length=64 data.batch_size=1"
    plan = make_plan(pk.load_config("t5/mini", [*small.split(), *lengths.split()]), device="h200")
    assert plan.memory["ddp"].activations > 2 * 4 * 8 * 4096**2


@pytest.mark.parametrize("source", ["glue/stsb", "glue/own", "glue/pixel-glue"])
def test_a_plan_of_fine_tuning_lists_its_assumptions(source: str) -> None:
    plan = make_plan(pk.load_config(source))
    encoder = "pixel/base" if "pixel" in source else "bert/base"
    assert plan.assumed is not None
    assert plan.assumed.startswith(f"the encoder of {encoder} (set init_from for another one)")
    assert not plan.problems
    assert plan.flops_per_step > 0


def test_nothing_is_drawn_for_an_encoder_without_weights() -> None:
    transformers = pytest.importorskip("transformers")
    before = torch.get_rng_state()
    config = transformers.BertConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    model = without_weights(lambda: transformers.BertModel(config))
    assert all(parameter.is_meta for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), before)


def test_the_command_imports_no_package_that_no_plan_uses() -> None:
    code = """
import sys
from pretrainkit.cli.plan import plan
plan('bert/tiny', ['parallel.activation_checkpointing=true'], gpus=2)
unused = {'timm', 'transformers', 'torchvision', 'scipy', 'wandb'}
print(sorted(unused & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


PRESETS = [f"{recipe}/{name}" for recipe in RECIPES for name in find_recipe(recipe).presets]
BETWEEN = re.compile(r"t5/.*-(base|large|3b|xl)|fourm/x?l-7|fourm/l-21|clip/zerovl-.*")
"""Presets between the smallest and the largest of a family, or which differ in their data alone."""


@pytest.mark.parametrize("source", [source for source in PRESETS if not BETWEEN.fullmatch(source)])
def test_every_preset_is_planned_without_data(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models that are built are counted, because building takes long."""
    built = []
    build = type(find_recipe(source.partition("/")[0])).build_model
    monkeypatch.setattr(
        type(find_recipe(source.partition("/")[0])),
        "build_model",
        lambda self, config: built.append(1) or build(self, config),
    )
    plan = make_plan(pk.load_config(source))
    assert plan.assumed
    assert plan.memory["ddp"].activations > 0
    assert plan.flops_per_step > 0
    assert len(built) == 1


def _memory(recipe: Any, config: Any, model: Any) -> StepMemory:
    """Return the memory of two examples in bfloat16."""
    config = with_batch_size(config, 2)
    batch = {name: torch.from_numpy(array) for name, array in host_batch_of(recipe, config, 2, None).items()}
    precision = Precision(torch.device("cpu"), torch.bfloat16, False, None)
    return step_memory(model, recipe.build_objective(config), [batch], config.optimizer, precision)


def _assumed(source: str, words: list[str]) -> tuple[Any, Any]:
    config = pk.load_config(source, words)
    recipe = find_recipe(config.recipe)
    return recipe, recipe.without_data(config)[0]


def test_a_card_without_bfloat16_is_planned_with_its_formats() -> None:
    assert make_plan(pk.load_config("bert/base"), device="v100").precision == "float32"
    half = make_plan(pk.load_config("bert/base", ["precision.compute=float16"]), device="v100")
    single = make_plan(pk.load_config("bert/base", ["precision.compute=float32"]), device="v100")
    assert single.seconds / half.seconds == pytest.approx(125 / 15.7)
