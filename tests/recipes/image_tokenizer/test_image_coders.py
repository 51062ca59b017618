"""Encoders and decoders: sizes, positions and layers (section 10.1)."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from pretrainkit.config.base import unread
from pretrainkit.data.aligned_crops import centre_square
from pretrainkit.errors import DataError
from pretrainkit.recipes.image_tokenizer.coders import grid_table, stretched
from pretrainkit.recipes.image_tokenizer.model import build, prepared
from pretrainkit.recipes.image_tokenizer.model_config import (
    DOMAINS,
    CodebookConfig,
    ConvCoderConfig,
    Domain,
    FiniteScalarConfig,
    MemcodesConfig,
    MLPCoderConfig,
    NoiseConfig,
    UNetConfig,
    UViTConfig,
)
from pretrainkit.recipes.image_tokenizer.source import read_image
from support.tokenizer_data import CODER, RGB, model

CONV = ConvCoderConfig(width=8, multipliers=(1, 2, 1, 2))
MLP = MLPCoderConfig(width=12, num_blocks=2)
UNET = UNetConfig(width=8, multipliers=(1, 2), num_blocks=1, attention_at=(2,))
UVIT = UViTConfig(widths=(8, 16), num_blocks=1, hidden_size=16, num_layers=1, num_heads=2, halves_before_middle=False)
FEATURES = Domain(name="seen", kind="features", num_channels=6)
CLASSES = Domain(name="semseg", kind="classes", num_channels=5, num_classes=4)
DEPTH = DOMAINS["depth"]
KINDS = {
    "vit": model(),
    "vit, fsq": model(quantizer=FiniteScalarConfig(levels=(4, 3))),
    "vit with convolutions": model(
        domain=DOMAINS["sam_mask"], decoder=CODER.model_copy(update={"num_output_convolutions": 2})
    ),
    "conv": model(encoder=CONV, decoder=CONV),
    "features": model(domain=FEATURES),
    "vectors": model(
        domain=FEATURES, image_size=8, encoder=MLP, decoder=MLP, quantizer=MemcodesConfig(size=5, width=8, num_heads=4)
    ),
    "classes": model(domain=CLASSES),
    "unet": model(decoder=UNET),
    "uvit": model(domain=DEPTH, decoder=UVIT),
}


def values_of(config, size: int, num: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    domain, side = config.domain, size // config.patch_size if config.domain.kind == "features" else size
    if domain.kind == "classes":
        return torch.randint(0, domain.num_classes, (num, side, side), generator=generator)
    return torch.rand(num, domain.num_channels, side, side, generator=generator)


@pytest.mark.parametrize("name", KINDS)
def test_images_become_tokens_and_images_again(name: str) -> None:
    torch.manual_seed(0)
    config = KINDS[name]
    assert config.problems() == []
    tokenizer = build(config).eval()
    values = values_of(config, config.image_size)
    quantized = tokenizer.encode(values)
    assert quantized.ids.flatten(1).shape == (2, config.num_tokens)
    assert quantized.ids.min() >= 0
    assert quantized.ids.max() < config.vocab_size
    ids = tokenizer.shaped_ids(quantized.ids.flatten(1))
    torch.testing.assert_close(tokenizer.quantizer.codes_of(ids), quantized.codes_BDhw.detach())
    made = tokenizer.decode(quantized.codes_BDhw, num_steps=2)
    side = config.grid if config.domain.kind == "features" else config.image_size
    assert made.shape == (2, config.domain.num_outputs, side, side)
    assert made.isfinite().all()


@pytest.mark.parametrize("name", KINDS)
def test_every_parameter_gets_a_gradient_from_every_pass(name: str) -> None:
    torch.manual_seed(0)
    config = KINDS[name]
    tokenizer = build(config).train()
    with torch.no_grad():  # what begins as zeros would hide what is before it
        for parameter in tokenizer.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    found = tokenizer(values_of(config, config.image_size), torch.arange(2))
    found.prediction_BEHW.square().sum().backward()
    silent = [name for name, parameter in tokenizer.named_parameters() if parameter.grad is None]
    assert silent == []


@pytest.mark.parametrize("name", ["vit", "conv", "classes"])
def test_images_of_other_sizes_are_encoded_and_decoded(name: str) -> None:
    config = KINDS[name]
    tokenizer = build(config).eval()
    quantized = tokenizer.encode(values_of(config, 32))
    assert quantized.ids.shape == (2, 4, 4)
    assert tokenizer.decode(quantized.codes_BDhw).shape[-2:] == (32, 32)


def test_the_codes_of_an_image_do_not_depend_on_the_others() -> None:
    torch.manual_seed(0)
    for name in ("vit", "unet", "vectors"):
        tokenizer, config = build(KINDS[name]).train(), KINDS[name]
        values, keys = values_of(config, config.image_size, 4), torch.arange(4) * 31
        whole, part = tokenizer(values, keys), tokenizer(values[1:3], keys[1:3])
        torch.testing.assert_close(part.prediction_BEHW, whole.prediction_BEHW[1:3], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(part.target, whole.target[1:3], rtol=1e-5, atol=1e-6)


def test_frozen_encoders_stay_as_they_are() -> None:
    tokenizer = build(model(is_encoder_frozen=True)).train()
    assert not tokenizer.encoder.training
    assert tokenizer.decoder.training
    found = tokenizer(values_of(tokenizer.config, 16), torch.arange(2))
    found.prediction_BEHW.sum().backward()
    assert {name.partition(".")[0] for name, p in tokenizer.named_parameters() if p.grad is not None} == {
        "decoder", "from_codes"
    }  # fmt: skip


def test_positions_are_sines_and_cosines_of_row_and_column() -> None:
    table = grid_table(3, 5, 8)
    rates = 10_000.0 ** -(torch.arange(2) / 2)
    expected = torch.cat(((2 * rates).sin(), (2 * rates).cos(), (4 * rates).sin(), (4 * rates).cos()))
    torch.testing.assert_close(table[0, :, 2, 4], expected)
    assert stretched(table, 3, 5) is table
    assert stretched(table, 6, 10).shape == (1, 8, 6, 10)


def test_files_become_values() -> None:
    colors = prepared(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 3, 2, 2), model())
    assert colors[0, 0].tolist() == [[-1, 1], [-1, 1]]
    classes = prepared(torch.tensor([[[255, 0], [1, 2]]], dtype=torch.int16), KINDS["classes"])
    assert classes.tolist() == [[[0, 1], [2, 3]]]
    assert prepared(torch.zeros(1, 3, 16, 16), model(), 8).shape == (1, 3, 8, 8)


@pytest.mark.parametrize(("dtype", "largest"), [(np.uint16, 65535), (np.uint8, 255)])
def test_depth_of_a_narrow_range_is_standardized_as_in_the_original(dtype: type, largest: int) -> None:
    depth_HW = np.random.default_rng(0).integers(90, 120, (16, 16)).astype(dtype)
    file = io.BytesIO()
    Image.fromarray(depth_HW).save(file, "png")
    config = model(domain=DEPTH)
    found_HW = read_image(file.getvalue(), config, centre_square(16, 16), "depth/a.png", is_exact=True)[0]
    share_HW = depth_HW / largest
    middle = np.sort(share_HW, axis=None)[25:231]
    np.testing.assert_allclose(found_HW, (share_HW - middle.mean()) / np.sqrt(middle.var() + 1e-6), atol=1e-3)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (model(image_size=20), "not a multiple of model.patch_size"),
        (model(encoder=CODER.model_copy(update={"num_heads": 3})), "cannot be split over 3 heads"),
        (model(encoder=CONV.model_copy(update={"multipliers": (1, 2)})), "makes patches of 2 pixels"),
        (model(encoder=MLP), "reads features, not colors"),
        (model(domain=FEATURES, encoder=CONV), "reads images, not features"),
        (model(encoder=CODER.model_copy(update={"num_output_convolutions": 1})), "for decoders"),
        (model(domain=CLASSES, decoder=UNET), "a diffusion decoder makes pictures"),
        (model(image_size=24, decoder=UNET.model_copy(update={"multipliers": (1, 1, 1)})), "a multiple of 16 pixels"),
        (
            model(decoder=UNET.model_copy(update={"noise": NoiseConfig(shift=0.5)})),
            "only with decoder.noise.schedule",
        ),
        (model(decoder=UNET.model_copy(update={"noise": NoiseConfig(prediction="noise")})), "cannot be computed"),
        (model(decoder=UNET.model_copy(update={"noise": NoiseConfig(masks_places=True)})), "dropout above 0"),
    ],
)
def test_invalid_configs_are_reported(config, message: str) -> None:
    assert any(message in problem for problem in [*config.problems(), *unread(config)])


def test_invalid_domains_are_refused() -> None:
    with pytest.raises(ValueError, match="num_channels=4\n  set num_channels=3"):
        Domain(name="x", kind="colors", num_channels=4)
    with pytest.raises(ValueError, match="which needs num_classes"):
        Domain(name="x", kind="classes", num_channels=4)
    with pytest.raises(ValueError, match="cannot be split over num_heads"):
        MemcodesConfig(size=4, width=6, num_heads=4)
    assert CodebookConfig(size=3).vocab_size == 3
    assert RGB.has_pixel_range


@pytest.mark.parametrize(
    ("value", "problem"), [(np.nan, "NaN in 1 of 24"), (np.inf, "NaN or infinite values in 1 of 24")]
)
def test_features_that_would_make_the_loss_nan_are_refused_with_their_file(value: float, problem: str) -> None:
    values, file = np.ones((6, 2, 2), np.float32), io.BytesIO()
    values[0, 0, 0] = value
    np.save(file, values)
    with pytest.raises(DataError, match=rf"seen/a.npy has {problem} places"):
        read_image(file.getvalue(), model(domain=FEATURES), centre_square(16, 16), "seen/a.npy", is_exact=True)
