"""Configs of the original's tokenizers: facts of its published files, and the presets that have the same settings."""

import json

import pytest

from pretrainkit import api
from pretrainkit.config.yaml import parse_yaml
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.image_tokenizer.presets import PRESETS
from support.command_line import refused, succeed
from support.remedies import followed

TRAIN = """
dtype: bf16
opt: adamw
opt_betas: [0.9, 0.99]
blr: 0.0001
warmup_lr: 0.000001
min_lr: 0.
batch_size: 64
clip_grad: 1.0
model_ema: True
find_unused_params: True
save_ckpt_freq: 1
step_eval: True
epoch_eval: False
eval_freq: 5000
data_path: data/train
eval_data_path: data/valid
log_wandb: False
wandb_entity: null
output_dir: output/auto
run_name: auto
"""
CODES = """
latent_dim: 32
norm_codes: True
codebook_weight: 1.0
quantizer_type: lucid
coef_ema_dead_code: 32.0
code_replacement_policy: batch_random
commitment_weight: 1.0
quantizer_ema_decay: 0.99
kmeans_init: False
"""
SIZE = "input_size_min: 224\ninput_size_max: 224\nresolution_step: 32\npatch_size: 16\npost_mlp: True\n"
RGB = f"""{TRAIN}{CODES}{SIZE}
encoder_type: vit_b_enc
decoder_type: unet_patched
patch_size_dec: 4
codebook_size: 16_384
num_train_timesteps: 1000
prediction_type: sample
beta_schedule: linear
cls_free_guidance_dropout: 0.0
masked_cfg: False
clip_sample: True
loss_fn: mse
epochs: 50
warmup_epochs: 5
hflip: 0.5
model_ema_decay: 0.9999
eval_noise_schedule: DDIMScheduler
num_eval_timesteps: 50
num_eval_metrics_samples: 50000
domain: rgb
imagenet_default_mean_and_std: False
min_crop_scale: 0.8
"""
POSES = f"""{TRAIN}
encoder_type: BottleneckMLP/B_6-Wi_1024
decoder_type: BottleneckMLP/B_6-Wi_1024
codebook_size: 1024
latent_dim: 1024
num_codebooks: 8
quantizer_type: memcodes
loss_fn: smooth_l1
epochs: 15
warmup_epochs: 1
model_ema_decay: 0.99
domain: human_poses
imagenet_default_mean_and_std: True
min_crop_scale: 0.2
"""
FEATURES = f"""{TRAIN}{CODES}{SIZE}
encoder_type: vit_b_enc
decoder_type: vit_b_dec
codebook_size: 8192
loss_fn: smooth_l1
epochs: 20
warmup_epochs: 5
model_ema_decay: 0.99
domain: CLIP-B16
imagenet_default_mean_and_std: True
min_crop_scale: 0.2
"""


def imported(folder, text, *settings, nproc=8):
    (folder / "theirs.yaml").write_text(text)
    return api.import_config(folder / "theirs.yaml", None, settings, nproc)


@pytest.mark.parametrize(
    ("text", "preset", "settings"),
    [(RGB, "rgb", ()), (POSES, "human-poses", ()), (FEATURES, "clip-b16", ("batch_size=128",))],
)
def test_published_settings_are_those_of_our_presets(tmp_path, text, preset, settings):
    config = imported(tmp_path, text, *settings).config
    ours = PRESETS[preset]()
    assert config.model == ours.model
    assert config.objective == ours.objective
    assert config.ema_decay == ours.ema_decay
    assert config.schedule == ours.schedule
    assert config.optimizer == ours.optimizer
    assert config.revival_threshold == ours.revival_threshold
    for name in ("batch_size", "num_epochs", "crop", "min_image_size"):
        assert getattr(config.data, name) == getattr(ours.data, name), name
    assert [one.path for one in config.data.train] == ["data/train"]
    assert config.precision.compute == "bfloat16"


def test_several_sizes_a_perceptual_loss_and_weights_to_begin_with(tmp_path):
    text = FEATURES + (
        "percept_loss_type: vit_base_patch16_clip_224.openai\npercept_loss_blocks: blocks.2-blocks.11\n"
        "percept_loss_distance: cosine\npercept_loss_weight: 0.5\nwarmup_steps: 5000\nfull_ckpt: tok/base.safetensors\n"
    )
    found = imported(tmp_path, text, "domain=rgb", "loss_fn=mse", "input_size_max=448", "warmup_epochs=-1", *PLAIN)
    config = found.config
    perceptual = config.objective.perceptual
    assert (perceptual.weight, perceptual.blocks, perceptual.distance) == (0.5, (2, 11), "cosine")
    assert (config.model.image_size, config.data.min_image_size, config.data.image_size_step) == (448, 224, 32)
    assert (
        config.schedule.num_warmup_steps == 4999
    )  # the original's first step is at 0, its last of warm-up at the peak
    assert found.weights_command == (
        *("import", "tok/base.safetensors", "--format", "4m-tokenizer", "--out", "tok/base"),
    )
    assert config.init_from == "tok/base"
    assert "warmup_lr" in found.without_effect


def test_a_frozen_encoder_keeps_the_positions_of_its_own_size(tmp_path):
    found = imported(tmp_path, FEATURES, "domain=rgb", "loss_fn=mse", "freeze_enc=true", "input_size_enc=448", *PLAIN)
    assert found.config.model.encoder.position_grid == 28
    assert found.config.model.decoder.position_grid is None
    assert "input_size_enc" not in found.without_effect


PLAIN = ("imagenet_default_mean_and_std=false",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("optt=adamw", "has no key 'optt'"),
        ("opt=lamb", "opt=lamb has no counterpart\n  possible: adamw"),
        ("hflip=0.1", "hflip=0.1 has no counterpart"),
        ("domain=heat", "unknown value domain=heat"),
        ("loss_fn=cosine", "unknown value loss_fn=cosine"),
        ("imagenet_default_mean_and_std=true", "set imagenet_default_mean_and_std=false"),
        ("weight_decay_end=0.1", "weight_decay_end has no counterpart"),
        ("codebook_size=8-5-5", "is not a valid number"),
        ("encoder_type=vit_xxl_enc", "the config names vit_xxl_enc"),
    ],
)
def test_settings_without_a_counterpart_are_an_error(tmp_path, change, message):
    with pytest.raises(ConfigError) as error:
        imported(tmp_path, RGB, change)
    assert message in str(error.value)


def test_features_of_several_sizes_are_refused_and_equal_keys_are_read_once(tmp_path):
    with pytest.raises(ConfigError, match="features of several sizes have no counterpart") as error:
        imported(tmp_path, FEATURES, "input_size_max=448")
    advice = followed(error.value, "recipes/image_tokenizer/original_yaml.py: …: features of several sizes")
    assert advice.strip() == "set input_size_min=448"
    assert imported(tmp_path, FEATURES, "input_size_max=448", "input_size_min=448").config.model.image_size == 448
    assert imported(tmp_path, FEATURES + "loss_fn: smooth_l1\n").config  # as a published file has it
    with pytest.raises(ConfigError, match="the key 'loss_fn' is given twice"):
        imported(tmp_path, FEATURES + "loss_fn: mse\n")


def test_configs_of_vqcontrolnet_are_refused_in_one_message(tmp_path):
    path = tmp_path / "theirs.yaml"
    path.write_text("domain: rgb\ninput_size_sd: 512\ncodebook_size: 1024\nquantizer_type: lucid\nlatent_dim: 32\n")
    with pytest.raises(ConfigError, match="VQControlNet, whose decoder is Stable Diffusion"):
        api.import_config(path)


def test_the_command_writes_a_config_that_is_checked(tmp_path):
    (tmp_path / "theirs.yaml").write_text(RGB)
    succeed("config", "import", tmp_path / "theirs.yaml", "--nproc", "8", "--out", tmp_path / "ours.yaml")
    assert api.load_config(tmp_path / "ours.yaml").model == PRESETS["rgb"]().model
    words = ("config", "import", tmp_path / "theirs.yaml", "--nproc", "8", "--out", tmp_path / "again.yaml", "--json")
    answer = json.loads(succeed(*words))
    assert answer["out"] == str(tmp_path / "again.yaml")
    assert answer["config"] == parse_yaml((tmp_path / "again.yaml").read_text(), "again.yaml")
    text = refused("config", "import", tmp_path / "theirs.yaml", "imagenet_default_mean_and_std=true")
    advice = followed(text, "recipes/image_tokenizer/original_yaml.py: …: images are always scaled to -1 to 1")
    assert "imagenet_default_mean_and_std=false" in advice
    succeed("config", "import", tmp_path / "theirs.yaml", "imagenet_default_mean_and_std=false")
