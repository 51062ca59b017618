"""Presets and settings: the published recipe (facts 33, 34, 37), and combinations that are refused."""

import pytest
import torch

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.pixel.config import PixelObjectiveConfig
from pretrainkit.recipes.pixel.presets import PRESETS, base, small, tiny
from pretrainkit.recipes.pixel.recipe import RECIPE
from pretrainkit.training.optimizers.build import build_optimizer
from pretrainkit.training.optimizers.schedule import learning_rate

NUM_PARAMETERS = {"tiny": 1_202_752, "tiny-grid": 1_217_312, "small": 25_598_544, "base": 112_334_080}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_consistent_and_of_the_stated_size(name: str) -> None:
    config = PRESETS[name]()
    assert config.problems() == []
    with torch.device("meta"):
        model = RECIPE.build_model(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == NUM_PARAMETERS[name]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1, 3e-9),
        (25_000, 7.5e-5),
        (50_000, 1.5e-4),
        (100_000, 1.49045e-4),
        (250_000, 1.35240e-4),
        (525_000, 8.0e-5),
        (750_000, 3.2590e-5),
        (1_000_000, 1e-5),
    ],
)
def test_learning_rates_are_the_published_ones(step: int, expected: float) -> None:
    config = base()
    found = learning_rate(config.schedule, config.optimizer.peak_lr, config.total_steps, step)
    assert found == pytest.approx(expected, rel=2e-5)


def test_all_but_biases_and_norms_decay_in_the_published_recipe() -> None:
    model = RECIPE.build_model(tiny())
    optimizer = build_optimizer(model, base().optimizer)
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    assert all(group["weight_decay"] in (0, 0.05) for group in optimizer.param_groups)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert (id(parameter) in decayed) == (not name.endswith("bias") and "norm" not in name), name


def test_small_is_the_published_one() -> None:
    model = small().model
    assert (model.hidden_size, model.num_layers, model.num_heads, model.intermediate_size) == (384, 12, 6, 1536)
    assert (model.decoder_hidden_size, model.decoder_num_layers) == (264, 4)
    assert (model.decoder_num_heads, model.decoder_intermediate_size) == (6, 1056)


def problems(**updates: object) -> str:
    config = tiny()
    for path, value in updates.items():
        part, name = path.split("__")
        config = config.model_copy(update={part: getattr(config, part).model_copy(update={name: value})})
    return "\n".join(config.problems())


def test_settings_that_cannot_work_are_named() -> None:
    assert "model.num_heads 3" in problems(model__num_heads=3)
    assert "decoder_num_heads 5" in problems(model__decoder_num_heads=5)
    assert "data.max_patches 529 is more than model.max_patches 64" in problems(data__max_patches=529)
    assert "excludes all text" in problems(data__min_text_patches=144)
    random = PixelObjectiveConfig(masking="random", spacing=2)
    config = tiny().model_copy(update={"objective": random})
    assert any("objective.spacing=2 has an effect only with" in problem for problem in config.problems())


@pytest.mark.parametrize(
    ("weights", "reason"), [((0.5, 1.0), "one number per length"), ((0.5, 0.4, 0.6, 0.8, 0.9, 1.0), "must increase")]
)
def test_span_weights_must_fit(weights: tuple[float, ...], reason: str) -> None:
    with pytest.raises((ValueError, ConfigError), match=reason):
        PixelObjectiveConfig(cumulative_span_weights=weights)
