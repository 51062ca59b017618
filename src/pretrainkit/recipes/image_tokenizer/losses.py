"""How far reconstructions are from images.

Dimensions: B images, C channels, K classes, H x W pixels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.recipes.image_tokenizer.config import Reconstruction
from pretrainkit.recipes.image_tokenizer.precision import in_float32

_STABLE_1, _STABLE_2 = 0.01**2, 0.03**2
"""SSIM's, of the square of the range."""
_WINDOW, _DEVIATION = 11, 1.5


def reconstruction_loss(prediction: Tensor, target: Tensor, kind: Reconstruction) -> Tensor:
    """float32 (B,): the mean over an image.

    Args:
        prediction: (B, C, H, W); (B, K, H, W) logits of classes; logits of masks.
        target: (B, C, H, W); int64 (B, H, W) of classes; 0 and 1 of masks.
        kind: As in the config.
    """
    prediction = prediction.float()
    if kind == "cross_entropy":
        return F.cross_entropy(prediction, target, reduction="none").flatten(1).mean(1)
    if kind == "cosine":
        return 1 - F.cosine_similarity(prediction.flatten(1), target.flatten(1), dim=1)
    if kind == "cosine_channels":
        return 1 - F.cosine_similarity(prediction, target, dim=1).flatten(1).mean(1)
    if kind == "binary_cross_entropy":
        loss = F.binary_cross_entropy_with_logits(prediction, target, reduction="none")
    elif kind == "smooth_l1":
        loss = F.smooth_l1_loss(prediction, target, reduction="none")
    elif kind == "l1":
        loss = (prediction - target).abs()
    else:
        loss = (prediction - target).square()
    return loss.flatten(1).mean(1)


def psnr(prediction_BCHW: Tensor, target_BCHW: Tensor, value_range: float) -> Tensor:
    """float32 (B,): the ratio of the range and the mean squared error, in decibels; at most 100."""
    error_B = (prediction_BCHW.float() - target_BCHW).square().flatten(1).mean(1)
    return 10 * (value_range**2 / error_B.clamp(min=value_range**2 * 1e-10)).log10()


def ssim(prediction_BCHW: Tensor, target_BCHW: Tensor, value_range: float) -> Tensor:
    """float32 (B,): structural similarity, the mean over all places of a Gaussian window of 11 x 11 (Wang et al. 2004,
    https://doi.org/10.1109/TIP.2003.819861); the window shrinks to images that are smaller."""
    with in_float32(prediction_BCHW.device):
        return _ssim(prediction_BCHW.float(), target_BCHW.float(), value_range)


def _ssim(x: Tensor, y: Tensor, value_range: float) -> Tensor:
    size = min(_WINDOW, *x.shape[2:])
    offsets = torch.arange(size, device=x.device, dtype=torch.float32) - (size - 1) / 2
    line = (-offsets.square() / (2 * _DEVIATION**2)).exp()
    line = line / line.sum()

    def local(values: Tensor) -> Tensor:
        B, C, H, W = values.shape
        flat = F.conv2d(values.reshape(B * C, 1, H, W), line.view(1, 1, 1, -1))
        return F.conv2d(flat, line.view(1, 1, -1, 1))

    mean_x, mean_y = local(x), local(y)
    variance_x, variance_y = local(x * x) - mean_x**2, local(y * y) - mean_y**2
    covariance = local(x * y) - mean_x * mean_y
    c1, c2 = _STABLE_1 * value_range**2, _STABLE_2 * value_range**2
    found = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    found = found / ((mean_x**2 + mean_y**2 + c1) * (variance_x + variance_y + c2))
    return found.view(len(x), -1).mean(1)
