"""Settings of loss and order that cannot be meant are named before any compute."""

import re

import pytest

from pretrainkit.api import load_config
from pretrainkit.recipes.clip.config import ClipRun
from pretrainkit.recipes.clip.presets import PRESETS
from support.toy_pairs import toy_config


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_no_problem(name):
    assert PRESETS[name]().problems() == []


@pytest.mark.parametrize(
    ("objective", "data", "words"),
    [
        ({"loss": "siglip", "label_smoothing": 0.1}, {}, "objective.label_smoothing"),
        ({"loss": "siglip", "mixup": {}}, {}, "objective.mixup"),
        ({"loss": "siglip", "gather_gradient": False}, {}, "objective.gather_gradient=false"),
        ({"siglip_bias": -3.0}, {}, "siglip_bias=-3.0"),
        ({"gather": False, "gather_group_size": 2}, {}, "has an effect only with objective.gather=true"),
        ({"gather_group_size": 2}, {}, "3 ranks cannot be split into groups"),
        ({}, {"debias_exponent": 0.5}, "data.debias_exponent=0.5"),
        ({}, {"order": "sequential", "debias_draw": "balanced"}, "data.debias_draw=balanced"),
        ({}, {"debias_seed": 1}, "data.debias_seed=1"),
    ],
)
def test_each_misfit_is_one_problem(objective, data, words):
    problems = toy_config(objective, data).problems(world_size=3)
    assert len(problems) == 1
    assert words in problems[0]


def test_settings_that_fit_have_none():
    for objective, data in [
        ({"loss": "siglip", "siglip_bias": -3.0, "duplicates": "ignore"}, {"order": "debias", "debias_exponent": 0.5}),
        ({"mixup": {}, "label_smoothing": 0.1, "gather_group_size": 3}, {"order": "debias", "debias_draw": "balanced"}),
    ]:
        assert toy_config(objective, data).problems(world_size=3) == []


@pytest.mark.parametrize(
    ("temperature", "words"),
    [
        ({"kind": "constant", "value": 2.0}, "value=2 is outside .*smallest=0.01 and .*largest=0.5"),
        ({"kind": "parameter", "value": 0.005}, "value=0.005 is outside"),
        ({"kind": "parameter", "smallest": 0.5, "largest": 0.1}, "smallest=0.5 and .*largest=0.1 allow no temperature"),
        ({"kind": "log_parameter", "value": 0.001}, r"value=0.001 is outside model.temperature.smallest=0.01\n"),
    ],
)
def test_a_temperature_that_would_be_used_as_another_is_one_problem(temperature, words):
    problems = tiny({"temperature": temperature}).problems()
    assert len(problems) == 1
    assert re.search(words, problems[0])


def test_a_model_of_which_nothing_learns_is_one_problem():
    frozen = {
        "image": {"trainable": False},
        "text": {"trainable": False},
        "projection": {"image_trainable": False, "text_trainable": False},
        "temperature": {"kind": "constant"},
    }
    assert "the model has no trainable part" in tiny(frozen).problems()[0]
    assert tiny({**frozen, "text": {"trainable": True}}).problems() == []


def tiny(model: dict) -> ClipRun:
    return load_config({"extends": "clip/tiny", "model": model})
