"""Presets and the settings that cannot work together."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from pretrainkit.recipes.bert.config import BertObjectiveConfig, BertRun
from pretrainkit.recipes.bert.presets import PRESETS, base, modern_base, recipe_a, recipe_b, tiny
from pretrainkit.training.optimizers.config import ScheduleConfig


@pytest.mark.parametrize("name", PRESETS)
def test_presets_hold_together_and_survive_a_round_trip(name):
    config = PRESETS[name]()
    assert config.problems(world_size=8) == []
    assert BertRun.model_validate(config.model_dump()) == config
    assert BertRun.model_validate_json(config.model_dump_json()) == config
    assert PRESETS[name].__doc__


def test_documented_commands_of_the_spec():
    """Section 13: single host, and TPU v3-32."""
    a, b = recipe_a(), recipe_b()
    assert (a.data.batch_size, a.num_steps, a.schedule.num_warmup_steps) == (1024, 1_000_000, 10_000)
    assert (b.data.batch_size, b.num_steps, b.schedule.num_warmup_steps) == (4096, 125_000, 3_125)
    assert (a.optimizer.peak_lr, a.optimizer.beta1, a.optimizer.beta2, a.optimizer.epsilon) == (1e-4, 0.9, 0.999, 1e-6)
    assert (b.optimizer.peak_lr, b.optimizer.beta1, b.optimizer.beta2, b.optimizer.epsilon) == (1e-3, 0.9, 0.98, 1e-11)
    assert (a.optimizer.weight_decay, a.optimizer.max_grad_norm) == (0.01, 1.0)
    assert (b.optimizer.weight_decay, b.optimizer.max_grad_norm) == (0.1, 0.4)
    for config in (a, b):
        assert (config.data.max_seq_length, config.num_predictions) == (128, 20)
        assert (config.model, config.checkpoint.every_steps) == (base().model, 10_000)
        assert config.schedule == ScheduleConfig(name="linear", num_warmup_steps=config.schedule.num_warmup_steps)


def test_importing_presets_does_not_import_torch():
    code = "import sys, pretrainkit.recipes.bert.recipe as r; r.RECIPE.presets; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def changed(config, **updates):
    """A config with fields of its parts replaced: model={...}, data={...}."""
    values = config.model_dump()
    for part, fields in updates.items():
        values[part] |= fields
    return BertRun.model_validate(values)


@pytest.mark.parametrize(
    ("config", "updates", "message"),
    [
        (base(), {"data": {"max_seq_length": 1024}}, "data.max_seq_length 1024 is more than model.max_positions 512"),
        (base(), {"model": {"num_heads": 7}}, "model.hidden_size 768 cannot be split over model.num_heads 7"),
        (base(), {"data": {"batching": "rows", "microbatch_tokens": 8192}}, "only with data.batching=packed"),
        (base(), {"data": {"microbatch_tokens": 100}}, "is too small for one example"),
        (base(), {"objective": {"mean_span_length": 5.0}}, "only with objective.mask_unit=span"),
        (base(), {"objective": {"max_predictions": 128}}, "leaves no token to read"),
        (base(), {"model": {"type_vocab_size": 1}}, "pairs of segments need 2"),
        (modern_base(), {"model": {"local_window": 127}}, "it must be even"),
        (modern_base(), {"model": {"hidden_size": 780}}, "rotary positions need an even width"),
    ],
)
def test_settings_that_cannot_work_are_named(config, updates, message):
    problems = changed(config, **updates).problems()
    assert [problem for problem in problems if message in problem]


def test_problems_of_the_base_class_are_also_reported():
    assert any("cannot be split over 7 ranks" in problem for problem in tiny().problems(world_size=7))


def test_replacement_shares_must_add_up():
    with pytest.raises(ValidationError, match="the three must add up to 1"):
        BertObjectiveConfig(mask_share=0.8, random_share=0.2, keep_share=0.1)


def test_architecture_is_bert_where_none_is_named():
    values = tiny().model_dump()
    del values["model"]["arch"]
    assert BertRun.model_validate(values) == tiny()


def test_most_predictions_follow_from_the_rate_without_a_limit():
    assert base().num_predictions == 20
    assert modern_base().num_predictions == 307
