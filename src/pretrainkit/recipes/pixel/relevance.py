"""Explain predictions: compute how relevant each patch of a text is for an answer.

Dimensions: T tokens of one text, its class token and N patches; H heads, K width of one head, C classes (1 for a
number), P pixels per side of a patch, F values of a patch.
Sources: relevance by Chefer et al. 2021, https://arxiv.org/abs/2103.15679 (only self-attention: equations 5 and 6);
rollout by Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928. If patches are pooled instead of the class token,
the mean over the patches' rows is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.errors import InputError
from pretrainkit.nn.attention import AttentionLayout
from pretrainkit.nn.blocks import Pooler
from pretrainkit.recipes.pixel.sample import as_patches, in_lines
from pretrainkit.recipes.pixel.text_encoder import PixelTextEncoder
from pretrainkit.recipes.pixel.text_reader import stream
from pretrainkit.rendering.page import Text
from pretrainkit.rendering.renderer import Renderer

_PATCHES_PER_LINE = 32
_RED = np.array([230, 30, 30], np.float64)


class RecordedAttention(AttentionLayout):
    """Attention over a single text that keeps the probabilities of each layer, and their gradients."""

    def __init__(self) -> None:
        self.probabilities: list[Tensor] = []
        """Attention probabilities of each layer, (H, T, T); rows are queries."""

    def attend(self, qkv_T3HK: Tensor, *, window: int | None, dropout_rate: float) -> Tensor:
        q_HTK, k_HTK, v_HTK = qkv_T3HK.permute(1, 2, 0, 3)
        probabilities_HTT = (q_HTK @ k_HTK.transpose(1, 2) * q_HTK.shape[-1] ** -0.5).softmax(-1)
        if not probabilities_HTT.requires_grad:
            probabilities_HTT.requires_grad_()
        self.probabilities.append(probabilities_HTT)
        return (probabilities_HTT @ v_HTK).transpose(0, 1)


@dataclass(frozen=True, eq=False)
class Explanation:
    """An answer of a model and the relevance of each patch for it."""

    columns_XP: NDArray[np.uint8]
    """The drawn text, uint8 (N * P, P) or (N * P, P, 3)."""
    answer_C: NDArray[np.float32]
    """Logits of the classes, or a number."""
    target: int
    """Index of the answer to which `relevance_N` refers."""
    relevance_N: NDArray[np.float64]
    """Relevance of each patch, including the end patch; not negative."""
    rollout_N: NDArray[np.float64]
    """Attention rollout of each patch, which does not depend on the answer; not negative."""

    def picture(self, weights_N: NDArray[np.floating] | None = None) -> NDArray[np.uint8]:
        """Return a picture of the text in lines of 32 patches, uint8 RGB (rows, columns, 3). Patches with more weight
        are redder. The default weights are `relevance_N`."""
        weights_N = self.relevance_N if weights_N is None else weights_N
        patches_NPP3 = as_patches(self.columns_XP.swapaxes(0, 1), self.columns_XP.shape[1]).astype(np.float64)
        share_N111 = (weights_N / max(float(weights_N.max()), 1e-30))[:, None, None, None]
        # Blend towards red with the weight: white becomes red, black stays black.
        patches_NPP3 *= 1 - share_N111 * (1 - _RED / 255)
        return in_lines(patches_NPP3.round().astype(np.uint8), _PATCHES_PER_LINE, gap=0, paper=255)


def explain(
    model: Callable[..., Any], encoder: PixelTextEncoder, renderer: Renderer, text: Text, target: int | None = None
) -> Explanation:
    """Explain the answer of a fine-tuned model for a text or a pair. Raises InputError if there is no class `target`.

    Args:
        model: A model with one answer per text: a class or a number. It is called with a batch and the number of
            patches of its longest text; the first result is (1, C). Dropout must be off (`model.eval()`).
        encoder: The model's encoder.
        renderer: The model's renderer.
        target: Index of the class to explain; None: the predicted class.
    """
    columns_XP, P = renderer.columns(text), renderer.config.pixels_per_patch
    host = stream([columns_XP], P, has_color=renderer.config.rgb)
    batch = {name: torch.from_numpy(array).to(encoder.class_token.device) for name, array in host.items()}
    with torch.enable_grad(), recorded(encoder.blocks()) as attention:
        answer_C = model(batch, len(columns_XP) // P)[0][0].float()
    if target is None:
        target = int(answer_C.argmax())
    if not 0 <= target < len(answer_C):
        raise InputError(f"there is no class {target}: the model has {len(answer_C)}\n  classes are numbered from 0")
    return Explanation(
        columns_XP=columns_XP,
        answer_C=answer_C.detach().cpu().numpy(),
        target=target,
        relevance_N=_of_patches(encoder, relevance(answer_C[target], attention.probabilities)),
        rollout_N=_of_patches(encoder, rollout(attention.probabilities)),
    )


@contextmanager
def recorded(blocks: list[nn.Module]) -> Iterator[RecordedAttention]:
    """Replace the attention layout of the blocks by one that records probabilities."""
    attention = RecordedAttention()

    def replace(block: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return arguments[0], attention, *arguments[2:]

    hooks = [block.register_forward_pre_hook(replace) for block in blocks]
    try:
        yield attention
    finally:
        for hook in hooks:
            hook.remove()


def relevance(answer: Tensor, probabilities: list[Tensor]) -> Tensor:
    """Return how relevant each token (column) is for each token (row), for a scalar answer, float32 (T, T).

    In each layer, R becomes R + A R, where A is the positive part of gradient x attention, averaged over heads."""
    total_TT = torch.eye(probabilities[0].shape[-1], device=answer.device)
    gradients = torch.autograd.grad(answer, probabilities, allow_unused=True)
    for gradient_HTT, probabilities_HTT in zip(gradients, probabilities, strict=True):
        if gradient_HTT is not None:
            step_TT = (gradient_HTT * probabilities_HTT.detach()).clamp(min=0).mean(0).float()
            total_TT = total_TT + step_TT @ total_TT
    return total_TT


def rollout(probabilities: list[Tensor]) -> Tensor:
    """Return the product of the layers' attention matrices, float32 (T, T). Each is averaged with the identity for the
    residual path."""
    total_TT = torch.eye(probabilities[0].shape[-1], device=probabilities[0].device)
    for probabilities_HTT in probabilities:
        own_TT = torch.eye(len(total_TT), device=total_TT.device)
        total_TT = (probabilities_HTT.detach().float().mean(0) + own_TT) / 2 @ total_TT
    return total_TT


def _of_patches(encoder: PixelTextEncoder, total_TT: Tensor) -> NDArray[np.float64]:
    """Return the value of each patch for the pooled tokens, float64 (N,)."""
    rows = total_TT[:1] if isinstance(encoder.pooling, Pooler) else total_TT[1:]
    return rows[:, 1:].mean(0).double().cpu().numpy()
