"""Pictures of held-out texts for the report: original, masked, and reconstructed by the model.

Dimensions: B texts, N patches of a row, P pixels per side of a patch, K hidden patches, S = P * P.
"""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.data.source import BatchSource, Records
from pretrainkit.dist.weights import on_cpu
from pretrainkit.eval.evaluator import evaluation_mode
from pretrainkit.images.pillow import thumbnail
from pretrainkit.recipes.capabilities import StoredRecord
from pretrainkit.recipes.pixel.batch import pack
from pretrainkit.recipes.pixel.config import NUM_CHANNELS, PixelRun
from pretrainkit.recipes.pixel.source import PixelSource
from pretrainkit.tasks.rates import spread
from pretrainkit.training.watch import Sample

_PATCHES_PER_LINE = 24
"""Patches per line of a picture, so that three pictures fit side by side on a page without much scaling."""
_GAP = 4
"""Number of pixels between lines."""
_HIDDEN = (150, 175, 205)
"""RGB colour of hidden patches."""
_FRAME = 128
"""Grey level between and around lines."""


def sample(config: PixelRun, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
    """Reconstruct `num` texts, evenly spread over the first component of the held-out data.

    Returns:
        For each text, the pictures `original`, `masked` and `reconstructed`. If the model predicts standardized
        patches, they get the mean and standard deviation of the true patches, which the model does not predict.
    """
    assert isinstance(source, PixelSource)
    size = source.sizes[0]
    if not size:
        return []
    examples = source.examples(Records.of_first_epoch(spread(size, num)))
    lengths = examples.num_text_patches_B + 1
    is_hidden_BN = examples.is_masked_BN & (np.arange(examples.is_masked_BN.shape[1]) < lengths[:, None])
    predicted = reconstruct(config, model, examples.pixels, examples.num_text_patches_B, is_hidden_BN)
    samples = []
    for row, length in enumerate(lengths.tolist()):
        truth = as_patches(examples.pixels[row], config.model.patch_size)[:length]
        is_hidden = is_hidden_BN[row, :length]
        pictures = {"original": truth, "masked": truth.copy(), "reconstructed": truth.copy()}
        pictures["masked"][is_hidden] = _HIDDEN
        pictures["reconstructed"][is_hidden] = predicted[row]
        samples.append({name: [{"image": _picture(patches)}] for name, patches in pictures.items()})
    return samples


def show_examples(config: PixelRun, source: PixelSource, records: Records) -> list[Sample]:
    """Return pictures of each row, `original` and `masked`, with the text of the row if it is stored."""
    drawn, examples = source.examples(records), list[Sample]()
    stored = stored_records(source, records)
    for row, length in enumerate((drawn.num_text_patches_B + 1).tolist()):
        original = as_patches(drawn.pixels[row], config.model.patch_size)[:length]
        masked, is_hidden = original.copy(), drawn.is_masked_BN[row, :length]
        masked[is_hidden] = _HIDDEN
        text: Sample = {"text": stored[row].text} if stored[row].text else {}
        pictures = {
            name: [{"image": _picture(patches, "PNG")}]
            for name, patches in (("original", original), ("masked", masked))
        }
        examples.append({**text, **pictures, "hidden": f"{is_hidden.sum()} of {length} patches"})
    return examples


def stored_records(source: PixelSource, records: Records) -> list[StoredRecord]:
    """Return the texts of rows, or their pictures."""
    stored = []
    for component, index in zip(records.source.tolist(), records.index.tolist(), strict=True):
        rows = source.components[component]
        text, content = rows.stored(index)
        stored.append(StoredRecord(f"{rows.name} {index}", text, content))
    return stored


@torch.no_grad()
def reconstruct(
    config: PixelRun,
    model: nn.Module,
    pixels: NDArray[np.uint8],
    num_text_patches_B: NDArray[np.integer],
    is_hidden_BN: NDArray[np.bool_],
) -> list[NDArray[np.uint8]]:
    """Predict hidden patches on the CPU. Return uint8 (K, P, P, 3) for each text.

    `pixels`: uint8 (B, P, N * P) or (B, P, N * P, 3). No hidden patch may be after the end patch of its text."""
    model = on_cpu(model)
    batch = {name: torch.from_numpy(array) for name, array in pack(pixels, num_text_patches_B, is_hidden_BN).items()}
    with evaluation_mode(model):
        predicted_KF = model(batch, is_hidden_BN.shape[1]).float()
    predicted_KF = true_scale(config, batch["target_patches"], predicted_KF)
    P = config.model.patch_size
    drawn_KPPC = (predicted_KF * 255).round().clamp(0, 255).to(torch.uint8).view(-1, P, P, NUM_CHANNELS).numpy()
    return np.split(drawn_KPPC, np.cumsum(is_hidden_BN.sum(1))[:-1])


def true_scale(config: PixelRun, target_patches: Tensor, predicted_KF: Tensor) -> Tensor:
    """Give predicted standardized patches the mean and deviation of the true ones; float32 (K, F), white is 1."""
    if not config.objective.normalize_target:
        return predicted_KF
    target_KF = target_patches.float() / 255
    if target_KF.shape[1] != predicted_KF.shape[1]:
        target_KF = target_KF.repeat_interleave(NUM_CHANNELS, 1)
    variance_K1, mean_K1 = torch.var_mean(target_KF, dim=1, keepdim=True)
    return predicted_KF * (variance_K1 + 1e-6).sqrt() + mean_K1


def as_patches(pixels: NDArray[np.uint8], patch_size: int) -> NDArray[np.uint8]:
    """Divide (P, N * P) or (P, N * P, 3) into patches (N, P, P, 3), as a copy."""
    in_color = pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], NUM_CHANNELS, -1)
    return np.ascontiguousarray(in_color.reshape(patch_size, -1, patch_size, NUM_CHANNELS).swapaxes(0, 1))


def in_lines(patches_NPPC: NDArray[np.uint8], per_line: int, *, gap: int, paper: int) -> NDArray[np.uint8]:
    """Arrange patches in lines, with `gap` pixels of grey `paper` between and around them; uint8 RGB (rows, columns,
    3)."""
    N, P = patches_NPPC.shape[:2]
    num_lines = -(-N // per_line)
    page = np.full((gap + num_lines * (P + gap), min(N, per_line) * P + 2 * gap, NUM_CHANNELS), paper, np.uint8)
    for line in range(num_lines):
        strip = patches_NPPC[line * per_line : (line + 1) * per_line].swapaxes(0, 1).reshape(P, -1, NUM_CHANNELS)
        top = gap + line * (P + gap)
        page[top : top + P, gap : gap + strip.shape[1]] = strip
    return page


def _picture(patches_NPPC: NDArray[np.uint8], format: Literal["JPEG", "PNG"] = "JPEG") -> str:
    """Return a picture of the text in lines, as a data URI."""
    page = in_lines(patches_NPPC, _PATCHES_PER_LINE, gap=_GAP, paper=_FRAME)
    return thumbnail(page.transpose(2, 0, 1), height=max(page.shape[0], page.shape[1] // 3 + 1), format=format)
