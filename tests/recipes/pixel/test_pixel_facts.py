"""Numbers of the published recipe that no other test states (facts 22, 28, 34 to 37), and a step of all of it."""

import json

import numpy as np
import pytest
import torch

import pretrainkit
from pretrainkit.recipes.pixel.batch import pack
from pretrainkit.recipes.pixel.convert import write_huggingface
from pretrainkit.recipes.pixel.masking import draw_masks
from pretrainkit.recipes.pixel.objective import PixelObjective
from pretrainkit.recipes.pixel.presets import FINAL_LR, base, tiny
from pretrainkit.recipes.pixel.recipe import RECIPE
from pretrainkit.rng import fold
from support.pixel_batches import small_run

PATCHES = 529


def full_batch(num: int, patch: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Full canvases, masked as published, and the masks."""
    num_text = np.full(num, PATCHES - 1)
    masks = draw_masks(base().objective, fold(0, np.arange(num)), num_text, PATCHES)
    pixels = np.random.default_rng(0).integers(0, 256, (num, patch, PATCHES * patch), np.uint8)
    return pack(pixels, num_text, masks), masks


def test_of_529_patches_396_are_seen_and_133_drawn_again() -> None:
    batch, masks = full_batch(2, 4)
    assert batch["visible_starts"].tolist() == [0, 397, 794]
    assert batch["starts"].tolist() == [0, 530, 1060]
    assert batch["target_slots"].shape == (266,)
    hidden = batch["target_slots"] - 530 * (batch["target_slots"] > 530) - 1
    assert np.array_equal(hidden, np.flatnonzero(masks) % PATCHES)


def test_a_step_of_the_published_recipe_has_its_shapes() -> None:
    """On no device: nothing is computed."""
    config = base()
    model = pretrainkit.build_model(config, "meta")
    batch, _ = full_batch(3, 16)
    objective = PixelObjective(config)
    given = {name: torch.from_numpy(array).to("meta") for name, array in batch.items()}
    (found,) = objective.losses(model, given).values()
    found.total.backward()
    assert found.total.dtype == torch.float32
    for name, parameter in model.named_parameters():
        shape = parameter.grad.shape if parameter.grad is not None else None
        assert shape == (parameter.shape if parameter.requires_grad else None), name


def test_the_published_settings_of_training() -> None:
    config = base()
    optimizer = config.optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.999, 1e-8)
    assert (optimizer.weight_decay, optimizer.max_grad_norm, config.seed) == (0.05, 1.0, 42)
    assert (config.log.every_steps, config.evaluate.every_steps, config.checkpoint.every_steps) == (1000, 5000, 10_000)
    assert (config.num_steps, config.schedule.num_warmup_steps, config.data.batch_size) == (1_000_000, 50_000, 256)
    assert optimizer.peak_lr == 1.5e-4 * config.data.batch_size / 256
    assert config.schedule.floor * optimizer.peak_lr == pytest.approx(FINAL_LR)
    assert config.data.min_text_patches == 22
    assert (config.model.hidden_dropout, config.model.attention_dropout) == (0.1, 0.1)


def test_initial_weights_follow_from_the_seed() -> None:
    first, again, other = (
        pretrainkit.build_model(tiny().model_copy(update={"seed": seed})).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not torch.equal(first["encoder.patch.weight"], other["encoder.patch.weight"])


def test_an_exported_config_holds_the_published_keys_and_no_places_or_tokens(tmp_path) -> None:
    config = small_run()
    write_huggingface(RECIPE.build_model(config).state_dict(), config, tmp_path)
    found = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert {"hidden_size", "image_size", "mask_ratio", "norm_pix_loss", "qkv_bias"} <= found.keys()
    assert not found.keys() & {"cache_dir", "revision", "use_auth_token", "token", "_name_or_path"}
