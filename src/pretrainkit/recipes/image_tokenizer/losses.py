"""How far reconstructions are from images.

Dimensions: B images, C channels, K classes, H x W pixels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.nn.autocast import in_float32
from pretrainkit.recipes.image_tokenizer.config import Reconstruction

_STABLE_1, _STABLE_2 = 0.01**2, 0.03**2
"""SSIM's, of the square of the range."""
_WINDOW, _DEVIATION = 11, 1.5
_EXPONENTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Of the scales of MS-SSIM, from the finest."""


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
    with in_float32(prediction_BCHW):
        similarity_B, _ = _ssim(prediction_BCHW.float(), target_BCHW.float(), value_range)
    return similarity_B.mean(1)


def ms_ssim(prediction_BCHW: Tensor, target_BCHW: Tensor, value_range: float) -> Tensor:
    """float32 (B,): structural similarity at five scales (Wang et al. 2003,
    https://doi.org/10.1109/ACSSC.2003.1292216), the mean over channels. Images below 176 pixels have fewer: as long as
    the window fits, with what is left of the exponents scaled to a sum of 1."""
    x, y = prediction_BCHW.float(), target_BCHW.float()
    side = min(x.shape[2:])
    num_scales = max(1, sum(side // 2**scale >= _WINDOW for scale in range(len(_EXPONENTS))))
    total = sum(_EXPONENTS[:num_scales])
    found = torch.ones(x.shape[:2], device=x.device)
    with in_float32(x):
        for scale, exponent in enumerate(_EXPONENTS[:num_scales]):
            whole_BC, structure_BC = _ssim(x, y, value_range)
            is_last = scale == num_scales - 1
            found = found * (whole_BC if is_last else structure_BC).clamp(min=0) ** (exponent / total)
            x, y = F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)
    return found.mean(1)


def _ssim(x: Tensor, y: Tensor, value_range: float) -> tuple[Tensor, Tensor]:
    """(B, C) twice: the similarity, and that of contrast and structure alone."""
    size = min(_WINDOW, *x.shape[2:])
    offsets = torch.arange(size, device=x.device, dtype=torch.float32) - (size - 1) / 2
    line = (-offsets.square() / (2 * _DEVIATION**2)).exp()
    line = line / line.sum()

    def local(values: Tensor) -> Tensor:
        B, C, H, W = values.shape
        flat = F.conv2d(values.reshape(B * C, 1, H, W), line.view(1, 1, 1, -1))
        return F.conv2d(flat, line.view(1, 1, -1, 1)).unflatten(0, (B, C))

    mean_x, mean_y = local(x), local(y)
    variance_x, variance_y = local(x * x) - mean_x**2, local(y * y) - mean_y**2
    covariance = local(x * y) - mean_x * mean_y
    c1, c2 = _STABLE_1 * value_range**2, _STABLE_2 * value_range**2
    structure = (2 * covariance + c2) / (variance_x + variance_y + c2)
    whole = structure * (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    return whole.flatten(2).mean(2), structure.flatten(2).mean(2)
