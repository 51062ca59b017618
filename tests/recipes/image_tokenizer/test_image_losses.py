"""Distances of images, compared with the formulas."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pretrainkit.errors import CheckpointError, ConfigError, MissingPackageError
from pretrainkit.exporting.torchvision_shim import import_timm
from pretrainkit.recipes.image_tokenizer.config import PerceptualConfig
from pretrainkit.recipes.image_tokenizer.losses import ms_ssim, psnr, reconstruction_loss, ssim

A, B = torch.rand(2, 3, 3, 16, 16, generator=torch.Generator().manual_seed(0)).unbind(0)


def test_losses_are_means_over_images() -> None:
    torch.testing.assert_close(reconstruction_loss(A, B, "mse"), (A - B).square().mean((1, 2, 3)))
    torch.testing.assert_close(reconstruction_loss(A, B, "l1"), (A - B).abs().mean((1, 2, 3)))
    torch.testing.assert_close(reconstruction_loss(A, B, "smooth_l1").mean(), F.smooth_l1_loss(A, B))
    torch.testing.assert_close(reconstruction_loss(A, 2 * A, "cosine"), torch.zeros(3), atol=1e-6, rtol=0)
    opposite = reconstruction_loss(A, -A, "cosine_channels")
    torch.testing.assert_close(opposite, torch.full((3,), 2.0))
    classes = torch.randint(0, 3, (3, 16, 16))
    torch.testing.assert_close(reconstruction_loss(A, classes, "cross_entropy").mean(), F.cross_entropy(A, classes))
    masks = (B > 0.5).float()
    expected = F.binary_cross_entropy(torch.sigmoid(A), masks)
    torch.testing.assert_close(reconstruction_loss(A, masks, "binary_cross_entropy").mean(), expected)


def test_psnr_is_the_ratio_in_decibels() -> None:
    made = torch.zeros(1, 1, 2, 2)
    assert psnr(made + 0.1, made, 2.0).item() == pytest.approx(10 * math.log10(4 / 0.01), rel=1e-5)
    assert psnr(made, made, 2.0).item() == pytest.approx(100)


def test_ssim_is_that_of_its_formula() -> None:
    assert ssim(A, A, 1.0).tolist() == pytest.approx([1, 1, 1])
    assert ssim(A, B, 1.0).max() < 0.2
    line = np.exp(-((np.arange(11) - 5) ** 2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    x, y = A[0, 0, :11, :11].double().numpy(), B[0, 0, :11, :11].double().numpy()
    mean_x, mean_y = (window * x).sum(), (window * y).sum()
    var_x, var_y = (window * x * x).sum() - mean_x**2, (window * y * y).sum() - mean_y**2
    both = (window * x * y).sum() - mean_x * mean_y
    expected = (2 * mean_x * mean_y + 1e-4) * (2 * both + 9e-4)
    expected /= (mean_x**2 + mean_y**2 + 1e-4) * (var_x + var_y + 9e-4)
    assert ssim(A[:1, :1, :11, :11], B[:1, :1, :11, :11], 1.0).item() == pytest.approx(expected, rel=1e-4)
    assert ssim(A[:, :, :4, :4], A[:, :, :4, :4], 1.0).tolist() == pytest.approx([1, 1, 1])


def test_ms_ssim_is_the_product_of_scales() -> None:
    """Computed by hand: 64 pixels allow three scales, 64, 32 and 16."""
    rng = torch.Generator().manual_seed(3)
    x = torch.rand(2, 1, 64, 64, generator=rng)
    y = (x + 0.2 * torch.rand(x.shape, generator=rng)).clamp(0, 1)
    expected = torch.ones(2, dtype=torch.float64)
    exponents = np.array([0.0448, 0.2856, 0.3001]) / 0.6305
    for number, exponent in enumerate(exponents):
        a, b = (F.avg_pool2d(v, 2**number)[:, 0].double() for v in (x, y))
        line = np.exp(-((np.arange(11) - 5) ** 2) / (2 * 1.5**2))
        window = torch.from_numpy(np.outer(line, line) / line.sum() ** 2)
        a, b = (v.unfold(1, 11, 1).unfold(2, 11, 1) for v in (a, b))
        mean_a, mean_b = ((window * v).sum((-1, -2)) for v in (a, b))
        var_a, var_b = ((window * v * v).sum((-1, -2)) - m**2 for v, m in ((a, mean_a), (b, mean_b)))
        both = (window * a * b).sum((-1, -2)) - mean_a * mean_b
        value = (2 * both + 9e-4) / (var_a + var_b + 9e-4)
        if number == 2:
            value = value * (2 * mean_a * mean_b + 1e-4) / (mean_a**2 + mean_b**2 + 1e-4)
        expected *= value.mean((1, 2)) ** exponent
    assert ms_ssim(x, y, 1.0).tolist() == pytest.approx(expected.tolist(), rel=1e-4)
    assert ms_ssim(x, x, 1.0).tolist() == pytest.approx([1, 1])


SMALL = {"network": "test_vit", "weights": "random", "image_size": 32, "blocks": (0, 2)}


@pytest.fixture(scope="module")
def timm():
    """The package; it needs torchvision in working order."""
    try:
        return import_timm("a test")
    except MissingPackageError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("distance", ["cosine", "mse", "l1"])
def test_another_network_measures_the_difference(timm, distance: str) -> None:
    from pretrainkit.recipes.image_tokenizer.losses import Perceptual

    perceptual = Perceptual(PerceptualConfig(weight=1.0, distance=distance, **SMALL))
    made = A.clone().requires_grad_()
    far = perceptual(made, B)
    assert far.shape == (3,)
    assert perceptual(A, A).abs().max() < 1e-5 < far.min()
    far.sum().backward()
    assert made.grad.abs().sum() > 0
    again = Perceptual(PerceptualConfig(weight=1.0, distance=distance, **SMALL))
    torch.testing.assert_close(again(A, B), far)
    assert perceptual(A[:, :1], B[:, :1]).shape == (3,)


def test_networks_that_cannot_be_opened_are_refused(timm, tmp_path) -> None:
    from pretrainkit.recipes.image_tokenizer.losses import Perceptual

    broken = tmp_path / "weights.safetensors"
    broken.write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match="cannot be read as weights"):
        Perceptual(PerceptualConfig(weight=1.0, **(SMALL | {"weights": str(broken)})))(A, B)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        Perceptual(PerceptualConfig(weight=1.0, **(SMALL | {"network": "no_such_network"}))).require()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"weights": "random"}, "random_network_distance"),
        ({"weights": "a.safetensors"}, "perceptual_distance"),
        ({"network": "lpips_alex"}, "lpips"),
        ({"network": "lpips_alex", "weights": "random"}, "random_network_distance"),
    ],
)
def test_a_distance_has_the_name_of_its_kind(settings: dict[str, str], name: str) -> None:
    assert PerceptualConfig(**settings).metric == name


def test_a_distance_that_lpips_does_not_use_is_refused() -> None:
    with pytest.raises(ValueError, match="lpips_vgg does not use distance"):
        PerceptualConfig(network="lpips_vgg", distance="l1")


def test_distances_are_measured_without_being_learned(timm) -> None:
    from pretrainkit.recipes.image_tokenizer.objective import ImageTokenizerObjective
    from pretrainkit.recipes.image_tokenizer.presets import PRESETS

    preset = PRESETS["tiny"]()
    perceptual = PerceptualConfig(is_measured=True, **SMALL)
    objective = preset.objective.model_copy(update={"perceptual": perceptual})
    config = preset.model_copy(update={"objective": objective})
    assert config.problems() == []
    found = ImageTokenizerObjective(config)
    assert "perceptual_loss" not in found.scales
    errors = found.errors(A, B)
    assert errors["random_network_distance"].shape == (3,)
    assert errors["random_network_distance"].min() > 0
    assert "random_network_distance" not in ImageTokenizerObjective(preset).errors(A, B)


@pytest.mark.filterwarnings("ignore::UserWarning:torchvision")
def test_lpips_is_a_distance_with_the_weights_of_a_file(timm, tmp_path) -> None:
    lpips = pytest.importorskip("lpips", reason="LPIPS is measured with the package lpips")
    from safetensors.torch import save_model

    from pretrainkit.recipes.image_tokenizer.losses import Perceptual

    torch.manual_seed(1)
    network = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False).eval()
    save_model(network, str(tmp_path / "alex.safetensors"))
    x, y = (torch.rand(2, 3, 64, 64) * 2 - 1 for _ in range(2))
    found = Perceptual(PerceptualConfig(network="lpips_alex", weights=str(tmp_path / "alex.safetensors")))
    with torch.no_grad():
        torch.testing.assert_close(found(x, y), network(x, y).flatten())
    assert found(x, x).abs().max() == 0
    drawn = Perceptual(PerceptualConfig(network="lpips_alex", weights="random"))
    assert drawn(x[:, :1], y[:, :1]).min() > 0
