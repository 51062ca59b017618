"""Presets and settings: the published runs (facts 2, 5, 29, 30), and combinations that are refused."""

import pytest
import torch

from pretrainkit.recipes.fourm.config import FourMObjectiveConfig, FourMRun, LengthConfig, MaskingConfig
from pretrainkit.recipes.fourm.model import build
from pretrainkit.recipes.fourm.presets import PRESETS, b_7, b_21, tiny, xl_7, xl_21
from pretrainkit.recipes.fourm.recipe import RECIPE
from pretrainkit.training.optimizers.build import decayed_names
from pretrainkit.training.optimizers.config import ScheduleConfig
from pretrainkit.training.optimizers.schedule import learning_rate
from support.fourm_batches import MODALITIES, small

MILLIONS = {"b-7": 360.8, "l-7": 921.7, "xl-7": 3254.9, "b-21": 623.8, "l-21": 1272.4, "xl-21": 3956.3}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_no_problems(name: str) -> None:
    assert PRESETS[name]().problems() == []


@pytest.mark.parametrize("name", MILLIONS)
def test_published_presets_have_the_published_sizes(name: str) -> None:
    with torch.device("meta"):
        model = RECIPE.build_model(PRESETS[name]())
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 1) == MILLIONS[name]


@pytest.mark.parametrize(("name", "inputs", "targets"), [("b-7", 8, 7), ("b-21", 19, 17)])
def test_inputs_and_targets_are_as_many_as_published(name: str, inputs: int, targets: int) -> None:
    modalities = PRESETS[name]().model.modalities
    assert sum(modality.is_input for modality in modalities) == inputs
    assert sum(modality.is_target for modality in modalities) == targets


@pytest.mark.parametrize(
    ("preset", "num_steps", "peak"),
    [(b_7, 196 * 1220, 3.2e-3), (xl_7, 196 * 1220, 6.4e-4), (b_21, 98 * 2441, 1.6e-3), (xl_21, 98 * 2441, 3.2e-4)],
)
def test_lengths_and_rates_are_the_published_ones(preset, num_steps: int, peak: float) -> None:
    config = preset().in_steps()
    assert config.num_steps == num_steps
    rates = [
        learning_rate(config.schedule, config.optimizer.peak_lr, num_steps, step)
        for step in (0, 4767, 4768, num_steps - 1)
    ]
    assert rates[0] == 0
    assert rates[1] < rates[2] == pytest.approx(peak)
    assert 0 < rates[3] < 1e-8
    if preset is b_7:
        assert round(config.num_steps * config.step_tokens / 1e9, 2) == 501.47


def test_lengths_follow_the_batch() -> None:
    config = b_7()
    half = config.model_copy(update={"data": config.data.model_copy(update={"batch_size": 4096})})
    assert half.in_steps().num_steps == 196 * 2441
    exact = half.model_copy(update={"length": LengthConfig(num_tokens=half.step_tokens * 10 + 1)})
    assert exact.in_steps().num_steps == 11


def test_all_but_norms_and_biases_decay() -> None:
    model = build(small(biases=True, gated=False, activation="gelu", num_registers=2))
    config = b_7().optimizer
    groups = {group.pattern: group.weight_decay for group in config.groups}
    for name, is_decayed in decayed_names(model, config).items():
        wanted = "norm" not in name and not name.endswith("bias")
        assert (is_decayed or groups.get(name) == config.weight_decay) == wanted, name


def test_a_bound_config_is_consistent() -> None:
    config = b_7().in_steps()
    assert config.problems() == []
    assert config.in_steps() == config


def changed(**update) -> FourMRun:
    return tiny().model_copy(update=update)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed(length=LengthConfig(num_tokens=10**9)), "num_steps=1500, but length.num_tokens makes it"),
        (changed(length=LengthConfig(num_warmup_tokens=10**6)), "num_warmup_steps=75, but"),
        (changed(length=LengthConfig(num_epoch_examples=5)), "no effect without length.num_tokens"),
        (
            changed(length=LengthConfig(num_warmup_tokens=1), schedule=ScheduleConfig(name="cosine", warmup_share=0.1)),
            "both define the warm-up",
        ),
        (changed(model=small(num_heads=3)), "cannot be split"),
        (changed(model=small(MODALITIES[2:4])), "no input or no target"),
        (changed(objective=FourMObjectiveConfig(modality_weights={"rgb": 1.0})), "not a target of the model"),
        (
            changed(
                objective=FourMObjectiveConfig(
                    modality_weights={modality.name: 0.0 for modality in tiny().model.modalities if modality.is_target}
                )
            ),
            "so there is no loss",
        ),
        (changed(model=small(num_registers=1)), "masking.unused=pad"),
    ],
)
def test_invalid_configs_are_reported(config: FourMRun, message: str) -> None:
    assert any(message in problem for problem in config.problems())


def test_registers_are_fine_where_rows_hold_one_example() -> None:
    assert changed(model=small(num_registers=1), masking=MaskingConfig(unused="pad")).problems() == []
