"""YAML files as the original has them: what becomes of them, and what is refused."""

from pathlib import Path

import pytest

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.fourm.config import FourMRun
from pretrainkit.recipes.fourm.original_yaml import import_config
from pretrainkit.recipes.fourm.presets import b_7

MAIN = """
run_name: auto
num_input_tokens: 128
num_target_tokens: 128
loss_type: mod
model: fm_base_12e_12d_swiglu_nobias
patch_size: 16
input_size: 224
dtype: bfloat16
tokenizer_path: words.json
text_tokenizer_path: words
epochs: -1
total_tokens: 500
opt: adamw
blr: 0.0001
min_blr: 0.
warmup_epochs: -1
warmup_tokens: 10
batch_size: 128
data_config: cfgs/data.yaml
epoch_size: 10_000_000
eval_freq: 1
save_ckpt_freq: 1
"""
DOMAINS = "rgb@224-tok_rgb@224-tok_depth@224-tok_semseg@224-tok_normal@224-tok_clip@224-caption-det"
DATA = f"""
train:
  datasets:
    pairs:
      type: multimodal
      in_domains: {DOMAINS}
      out_domains: {DOMAINS.removeprefix("rgb@224-")}
      input_alphas: null
      alphas_config: cfgs/alphas.yaml
      data_path: shards/[rgb,caption]/shard-{{00000..00009}}.tar
      use_wds: True
      wds_n_repeats: 4
      modality_name_map: {{colors: tok_rgb@224}}
  weights: [1.0]
val:
  datasets:
    pairs: {{data_path: held_out}}
"""
ALPHAS = "".join(
    f"{name}:\n  input_alphas: [{1000.0 if name == 'rgb@224' else 0.0}, 0.5]\n"
    f"  target_alphas: [{', '.join(['0.' if name == 'rgb@224' else '0.5'] * 2)}]\n"
    + ("  keep: ['random', 'all']\n" if name in ("caption", "det") else "")
    for name in DOMAINS.split("-")
)


@pytest.fixture
def main(tmp_path: Path) -> Path:
    """A main config with what it names in the folder above."""
    (tmp_path / "cfgs").mkdir()
    (tmp_path / "cfgs" / "data.yaml").write_text(DATA, "utf-8")
    (tmp_path / "cfgs" / "alphas.yaml").write_text(ALPHAS, "utf-8")
    path = tmp_path / "cfgs" / "main.yaml"
    path.write_text(MAIN, "utf-8")
    return path


def imported(path: Path, *settings: str) -> FourMRun:
    config = import_config(path, settings, nproc=64).config
    assert isinstance(config, FourMRun)
    return config


def test_the_published_run_is_our_preset(main: Path) -> None:
    config, preset = imported(main), b_7()
    assert config.problems() == []
    assert config.in_steps().num_steps == 239_120
    for part in ("model", "length", "schedule", "objective", "optimizer"):
        assert getattr(config, part) == getattr(preset, part), part
    assert config.data.batch_size == 8192
    assert config.checkpoint.every_steps == 1220


def test_data_sets_and_mixtures_are_read(main: Path) -> None:
    config = imported(main)
    (data,) = config.data.train
    assert (data.name, data.weight, data.folders) == ("pairs", 1.0, {"tok_rgb@224": "colors"})
    first, second = config.masking.mixture
    assert first.inputs["rgb@224"] == 1000
    assert first.inputs["caption"] == 0
    assert set(second.targets.values()) == {0.5}
    assert "rgb@224" not in second.targets
    assert second.keep == {"caption": "all", "det": "all"}
    assert [source.path for source in config.data.valid] == ["held_out"]


def test_settings_change_the_file(main: Path) -> None:
    config = imported(main, "loss_type=token", "accum_iter=2", "model=fm_large_24e_24d_swiglu_qknorm_nobias")
    assert config.objective.loss == "token_compat"
    assert (config.data.batch_size, config.data.microbatch_size) == (16384, 128)
    assert config.model.query_key_norm
    assert config.model.hidden_size == 1024


def test_keys_without_effect_are_told(main: Path) -> None:
    notes = " ".join(import_config(main, (), 1).notes)
    assert "tokenizer_path has no effect" in notes
    assert "wds_n_repeats has no effect" in notes
    assert "masking.unused=pad" in notes


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("opt=sgd", "opt=sgd has no counterpart"),
        ("scheduler=inverse_sqrt-10000", "no counterpart"),
        ("frozen_model_tokens=1", "no counterpart"),
        ("model=vit", "no model 'vit'"),
        ("num_target_token=1", "nearest: num_target_tokens"),
        ("data_config=none.yaml", "neither here nor in a folder above"),
    ],
)
def test_what_has_no_counterpart_is_refused(main: Path, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        import_config(main, (setting,), 1)
