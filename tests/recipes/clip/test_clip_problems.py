"""Settings of loss and order that cannot be meant are named before any compute."""

import pytest
from toy_pairs import toy_config

from pretrainkit.recipes.clip.presets import PRESETS


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
        ({"gather": False, "gather_group_size": 2}, {}, "means nothing with objective.gather=false"),
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
