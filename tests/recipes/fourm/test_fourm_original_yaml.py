"""Import of the original's YAML files, and the settings that are refused."""

from pathlib import Path

import pytest

import pretrainkit.api
from pretrainkit.data.aligned_crops import CropConfig
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.fourm.config import FourMRun
from pretrainkit.recipes.fourm.mixtures import PUBLISHED, Component
from pretrainkit.recipes.fourm.original_yaml import import_config
from pretrainkit.recipes.fourm.presets import b_7
from support.remedies import followed

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
    """Return a main config; the files that it names are in the parent folder."""
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


def test_held_out_sets_have_the_modalities_of_those_with_their_name(main: Path) -> None:
    config = imported(main)
    (train,), (valid,) = config.data.train, config.data.valid
    assert (valid.path, train.path) == ("held_out", "shards/[rgb,caption]/shard-{00000..00009}.tar")
    for field in ("name", "modalities", "folders", "mixture"):
        assert getattr(valid, field) == getattr(train, field), field


TEXTS = """    texts:
      type: huggingface
      in_domains: caption
      out_domains: caption
      input_alphas: "1.0"
      target_alphas: "1.0"
      alphas_config: null
      data_path: texts
      shuffle_buffer_load: 1_000
  weights: [0.8, 0.2]
"""


def test_texts_and_the_mixture_that_the_release_lacks_are_read(main: Path) -> None:
    data = DATA.replace("  weights: [1.0]\n", TEXTS).replace(
        "cfgs/alphas.yaml", "cfgs/all2allmix-oldmod_rgb2all_capbias_v0.yaml"
    )
    (main.parent / "data.yaml").write_text(data, "utf-8")
    found = import_config(main, (), 64)
    assert isinstance(found.config, FourMRun)
    pairs, texts = found.config.data.train
    assert pairs.mixture == PUBLISHED["mod7-all2allmix-rgb2all-capbias"]
    assert (texts.weight, texts.modalities) == (0.2, ("caption",))
    assert texts.mixture == (Component(inputs={"caption": 1.0}, targets={"caption": 1.0}),)
    notes = " ".join(found.notes)
    assert "the release lacks" in notes
    assert "not by `datasets`" in notes


def test_budgets_may_be_repeated_if_they_are_equal(main: Path) -> None:
    data = DATA.replace("use_wds", "min_input_tokens: 128\n      num_input_tokens: 128\n      use_wds")
    (main.parent / "data.yaml").write_text(data, "utf-8")
    assert imported(main).masking.num_input_tokens == 128
    (main.parent / "data.yaml").write_text(data.replace("num_input_tokens: 128", "num_input_tokens: 64"), "utf-8")
    with pytest.raises(ConfigError, match="make them equal"):
        imported(main)


def test_cuts_of_samples_without_stored_parts_are_read(main: Path) -> None:
    cut = "hflip: 0.25\n      crop_scale: [0.5, 1.0]\n      crop_ratio: [0.8, 1.25]\n      use_wds"
    domains = DATA.replace(DOMAINS, "rgb@224-caption").replace(DOMAINS.removeprefix("rgb@224-"), "caption")
    (main.parent / "data.yaml").write_text(domains.replace("use_wds", cut), "utf-8")
    assert imported(main).data.crop == CropConfig(scale=(0.5, 1.0), ratio=(0.8, 1.25), flip=0.25)
    for wrong, message in (
        (domains, "needs hflip, crop_scale and crop_ratio"),
        (DATA.replace("use_wds", cut), "belong to stored parts"),
        (DATA.replace("use_wds", "tok_train_aug: False\n      use_wds"), "no counterpart"),
    ):
        (main.parent / "data.yaml").write_text(wrong, "utf-8")
        with pytest.raises(ConfigError, match=message) as error:
            imported(main)
    advice = followed(error.value, "recipes/fourm/original_yaml.py: …: … has tok_train_aug=…, which has no")
    assert "leave out the key" in advice
    (main.parent / "data.yaml").write_text(DATA, "utf-8")
    assert imported(main)


def test_settings_change_the_file(main: Path) -> None:
    config = imported(main, "loss_type=token", "accum_iter=2", "model=fm_large_24e_24d_swiglu_qknorm_nobias")
    assert config.objective.loss == "token_compat"
    assert (config.data.batch_size, config.data.microbatch_size) == (16384, 128)
    assert config.model.query_key_norm
    assert config.model.hidden_size == 1024


def test_keys_without_effect_are_reported(main: Path) -> None:
    found = import_config(main, ("cooldown_tokens=1",), 1)
    assert {"cooldown_tokens", "tokenizer_path", "pairs.wds_n_repeats"} < found.without_effect.keys()
    assert "masking.unused=pad" in " ".join(found.notes)


def test_the_keys_of_a_file_decide_its_reader(main: Path) -> None:
    config = pretrainkit.api.import_config(main, settings=("finetune=weights/4M.pth",), nproc=64)
    assert config.config.recipe == "fourm"
    assert config.config.init_from == "weights/4M"
    assert " ".join(config.weights_command).startswith("import weights/4M.pth --recipe fourm --format 4m")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("opt=sgd", "opt=sgd has no counterpart"),
        ("scheduler=inverse_sqrt-10000", "no counterpart"),
        ("frozen_model_tokens=1", "no counterpart"),
        ("epochs=3", "both set the length"),
        ("model=vit", "no model 'vit'"),
        ("num_target_token=1", "nearest: num_target_tokens"),
        ("data_config=none.yaml", "neither in the working folder nor"),
    ],
)
def test_settings_without_a_counterpart_are_refused(main: Path, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        import_config(main, (setting,), 1)
