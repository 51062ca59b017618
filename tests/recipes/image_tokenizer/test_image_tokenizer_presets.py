"""Presets: the published runs of section 10.6, and combinations that are refused."""

import pytest
import torch

from pretrainkit.recipes.fourm.modality import published
from pretrainkit.recipes.image_tokenizer.config import (
    ImageTokenizerDataConfig,
    ImageTokenizerObjectiveConfig,
    ImageTokenizerRun,
    PerceptualConfig,
)
from pretrainkit.recipes.image_tokenizer.presets import PRESETS, rgb, semseg_coco, tiny
from pretrainkit.recipes.image_tokenizer.recipe import RECIPE
from pretrainkit.recipes.image_tokenizer.token_files import usual_name

PARAMETERS = {
    "rgb": 286_743_888,
    "rgb-uvit": 217_144_611,
    "rgb-perceptual": 180_788_000,
    "depth": 286_203_184,
    "normal": 286_743_888,
    "canny-edge": 286_203_184,
    "semseg-coco": 218_578_848,
    "clip-b16": 180_394_528,
    "dinov2-b14": 180_788_000,
    "imagebind-h14": 181_574_944,
    "dinov2-global": 115_042_048,
    "imagebind-global": 116_091_136,
    "human-poses": 106_683_599,
    "sam-mask": 172_077_956,
}
TOKENS = {"rgb": 196, "dinov2-b14": 256, "imagebind-h14": 256, "dinov2-global": 16, "human-poses": 8, "sam-mask": 16}
VOCABULARIES = {"rgb": 16384, "depth": 8192, "semseg-coco": 4096, "rgb-uvit": 1024, "human-poses": 1024}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_no_problems(name: str) -> None:
    assert PRESETS[name]().problems() == []


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_presets_have_their_sizes(name: str) -> None:
    with torch.device("meta"):
        model = RECIPE.build_model(PRESETS[name]())
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


def test_parts_are_as_large_as_by_hand() -> None:
    block = 4 * 768**2 + 4 * 768 + 2 * 4 * 768**2 + 5 * 768 + 4 * 768
    last = 2 * 4 * 768**2 + 5 * 768 + 2 * 768
    with torch.device("meta"):
        model = RECIPE.build_model(rgb())
    encoder = sum(parameter.numel() for parameter in model.encoder.parameters())
    assert encoder == 12 * block + last + 3 * 16 * 16 * 768 + 768


@pytest.mark.parametrize("name", TOKENS)
def test_images_have_as_many_tokens_as_published(name: str) -> None:
    assert PRESETS[name]().model.num_tokens == TOKENS[name]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_there_are_as_many_codes_as_published(name: str) -> None:
    assert PRESETS[name]().model.vocab_size == VOCABULARIES[name]


def test_rates_grow_with_the_batch_and_dead_codes_are_those_below_the_published_use() -> None:
    config = rgb()
    assert config.optimizer.peak_lr == pytest.approx(1e-4 * 512 / 256)
    assert config.revival_threshold == pytest.approx(512 * 196 / 16384 / 32)
    several = config.model_copy(update={"data": config.data.model_copy(update={"min_image_size": 160})})
    assert several.revival_threshold == pytest.approx(512 * (192 / 16) ** 2 / 16384 / 32)


def changed(config=None, **update) -> ImageTokenizerRun:
    return (config or tiny()).model_copy(update=update)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            changed(objective=ImageTokenizerObjectiveConfig(reconstruction="cross_entropy")),
            "model.domain rgb of kind colors",
        ),
        (changed(semseg_coco(), objective=ImageTokenizerObjectiveConfig()), "reconstruction=cross_entropy"),
        (
            changed(rgb(), objective=ImageTokenizerObjectiveConfig(reconstruction="cosine")),
            "does not fit a diffusion decoder",
        ),
        (
            changed(rgb(), objective=ImageTokenizerObjectiveConfig(perceptual=PerceptualConfig(weight=1.0))),
            "works only for pictures",
        ),
        (changed(data=ImageTokenizerDataConfig(batch_size=4, min_image_size=40)), "do not fit"),
    ],
)
def test_invalid_configs_are_reported(config: ImageTokenizerRun, message: str) -> None:
    assert any(message in problem for problem in config.problems())


@pytest.mark.parametrize(
    ("preset", "modality"),
    [
        ("rgb", "tok_rgb@224"),
        ("depth", "tok_depth@224"),
        ("normal", "tok_normal@224"),
        ("semseg-coco", "tok_semseg@224"),
        ("canny-edge", "tok_canny_edge@224"),
        ("clip-b16", "tok_clip@224"),
        ("dinov2-b14", "tok_dinov2@224"),
        ("imagebind-h14", "tok_imagebind@224"),
        ("dinov2-global", "tok_dinov2_global"),
        ("imagebind-global", "tok_imagebind_global"),
    ],
)
def test_tokens_of_published_tokenizers_are_the_published_modalities(preset: str, modality: str) -> None:
    model, known = PRESETS[preset]().model, published(modality)
    assert usual_name(model) == known.path == modality
    assert model.vocab_size == known.vocab_size
    assert model.num_tokens == known.max_tokens
