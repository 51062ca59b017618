"""Import of the original's generation configs as plans."""

import logging
import re
from pathlib import Path

import pytest
import yaml

from pretrainkit import api
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.fourm.generation.generate import plan_of
from pretrainkit.recipes.fourm.generation.plan import GenerationPlan

BASE = """
name: auto
cond_domains: caption
target_domains: tok_clip@224-tok_rgb@224
tokens_per_target: 196
autoregression_schemes: roar-roar
decoding_steps: 49-25
token_decoding_schedules: linear
temps: 6.0-0.5
temp_schedules: onex:0.5:0.5-constant
cfg_scales: 3.0
cfg_schedules: constant
cfg_grow_conditioning: True
top_p: 0.9
top_k: 0.0
"""
LATER = """
sr_name: auto
sr_cond_domains: null
sr_target_domains: tok_clip@448-tok_rgb@448
sr_tokens_per_target: 784
sr_autoregression_schemes: maskgit
sr_decoding_steps: 8
sr_token_decoding_schedules: cosine
sr_temps: 1.0
sr_temp_schedules: constant
sr_cfg_scales: 3.0
sr_cfg_schedules: constant
sr_cfg_grow_conditioning: True
sr_top_p: 0.9
sr_top_k: 0.0
"""


def read(folder, text):
    (folder / "theirs.yaml").write_text(text)
    return plan_of(folder / "theirs.yaml", (), (), {})


def test_the_published_setting_is_that_of_our_page(tmp_path, caplog):
    page = (Path(__file__).parents[3] / "docs/generation.md").read_text("utf-8")
    (ours,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "tok_clip@224" in block]
    plan = read(tmp_path, BASE)
    wanted = GenerationPlan.model_validate(yaml.safe_load(ours))
    explicit = [one.model_copy(update={"scheme": "roar", "schedule": "linear"}) for one in wanted.targets]
    assert list(plan.targets) == explicit
    assert plan.grow_conditions
    assert "cond_domains is ignored; pass conditions by --from or as prompts" in caplog.text


def test_settings_of_super_resolution_are_a_plan_of_their_own(tmp_path, caplog):
    plan = read(tmp_path, LATER + "num_variations: 3\nseed: 5\n")
    assert [one.modality for one in plan.targets] == ["tok_clip@448", "tok_rgb@448"]
    assert {(one.scheme, one.num_steps, one.schedule, one.guidance) for one in plan.targets} == {
        ("maskgit", 8, "cosine", 3.0)
    }
    assert (plan.num_variations, plan.seed) == (3, 5)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_sequences_have_a_length_and_no_steps(tmp_path):
    text = BASE.replace("tok_rgb@224", "caption").replace("roar-roar", "roar-autoregressive").replace("196", "196-77")
    plan = read(tmp_path, text)
    assert (plan.targets[1].max_tokens, plan.targets[1].scheme, plan.targets[1].temperature) == (
        77,
        "autoregressive",
        0.5,
    )


def test_the_command_for_a_file_is_printed(tmp_path):
    for name, text in (("base", BASE), ("later", LATER)):
        (tmp_path / f"{name}.yaml").write_text(text)
        found = api.import_config(tmp_path / f"{name}.yaml")
        assert found.command == ("generate", "imported", "--plan", str(tmp_path / f"{name}.yaml"))


def test_models_of_a_generation_are_imported_by_name(tmp_path):
    path = tmp_path / "models.yaml"
    tokenizers = "rgb_tok_id: someone/rgb_16k.v2\nsam_instance_tok_id: null\ndetokenizer_steps: 50\n"
    path.write_text(f"model: someone/4M-7_B\nsr_model: {path}\n{tokenizers}log_wandb: false\n")
    found = api.import_config(path)
    assert found.command == ("import", "hf-hub:someone/4M-7_B", "--format", "4m", "--out", "4M-7_B")
    assert [note.partition("pretrainkit ")[2] for note in found.notes] == [
        f"import {path} --format 4m --out models.yaml",
        "import hf-hub:someone/rgb_16k.v2 --format 4m-tokenizer --out rgb_16k.v2",
    ]
    path.write_text("rgb_tok_id: null\nimage_size: 224\nsr_model: null\n")
    with pytest.raises(ConfigError, match="names no model"):
        api.import_config(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("temps: 6.0-0.5", "temps: 6.0-0.5-1", "temps=6.0-0.5-1 has 3 values for 2 targets"),
        ("temps: 6.0-0.5", "temps: hot", "could not convert string to float"),
        ("cfg_schedules: constant", "cfg_schedules: linear", "cfg_schedules=linear has no counterpart"),
        ("tokens_per_target: 196", "tokens_per_target: 100", "tokens_per_target is 100 for tok_clip@224"),
        ("name: auto", "nmae: auto", "has no key 'nmae'"),
        ("name: auto", LATER, "has targets of two models"),
        ("roar-roar", "roar-dice", "scheme"),
    ],
)
def test_settings_without_a_counterpart_are_an_error(tmp_path, old, new, message):
    with pytest.raises(ConfigError) as error:
        read(tmp_path, BASE.replace(old, new))
    assert message in str(error.value)
