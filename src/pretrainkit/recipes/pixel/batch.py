"""Pack rendered texts and their masks into the model's input streams. This module does not import torch.

Every real patch occurs once: either in the encoder's stream or among the patches to predict. Nothing after the end
patch of a text is computed. All shapes are determined here, on the host, so that the device never has to synchronize.

Dimensions: B texts, P pixels per side of a patch, N patches of a row, C = 3 colours (absent in grey), F = P x P (x C)
values of a patch in row-major order, colours last; V tokens of the encoder and T of the decoder, including class
tokens, text after text; K patches to predict.
"""

import numpy as np
from numpy.typing import NDArray

HostBatch = dict[str, np.ndarray]


def pack(
    pixels: NDArray[np.uint8],
    num_text_patches_B: NDArray[np.integer],
    is_masked_BN: NDArray[np.bool_],
    *,
    pad_to: int = 1,
) -> HostBatch:
    """Return the batch of these texts.

    Args:
        pixels: uint8 (B, P, N * P) or (B, P, N * P, C).
        num_text_patches_B: Number of patches before each text's end patch, at most N - 1.
        is_masked_BN: True for patches to hide. Patches after the end patch are ignored.
        pad_to: V, T and K are rounded up to multiples of this.

    Returns:
        visible_patches: uint8 (V, F); 0 for class tokens.
        visible_positions: int32 (V,), 0 for class tokens, 1 + i for patch i; 0 in padding.
        visible_slots: int32 (V,), index of the token in the decoder's stream; the last index for padding.
        visible_starts: int32 (B + 1,), index at which each text begins, and the end of the last text.
        positions: int32 (T,), as visible_positions, for the decoder.
        starts: int32 (B + 1,), as visible_starts, for the decoder.
        target_patches: uint8 (K, F), the hidden patches.
        target_slots: int32 (K,), their index in the decoder's stream, ascending.
        target_weights: float32 (K,), 1, and 0 in padding.
        lengths: int32 (B,), number of patches of each text, including the end patch.
    """
    B, N = is_masked_BN.shape
    lengths_B = np.asarray(num_text_patches_B, np.int64) + 1
    if B == 0:  # only a class token, so that every parameter gets a (zero) gradient
        lengths_B = np.zeros(1, np.int64)
    patches_BN = _as_patches(pixels, N)
    F = int(np.prod(patches_BN.shape[2:]))
    is_real_BN = np.arange(N) < lengths_B[:B, None]
    is_target_BN = is_real_BN & is_masked_BN
    num_targets_B = is_target_BN.sum(1) if B else np.zeros(1, np.int64)
    starts = _starts(lengths_B + 1)
    visible_starts = _starts(lengths_B + 1 - num_targets_B)

    is_visible_T = np.ones(int(starts[-1]), np.bool_)
    row, column = np.nonzero(is_real_BN)
    is_visible_T[starts[row] + 1 + column] = ~is_target_BN[is_real_BN]  # 1: after the text's class token
    positions_T = np.arange(len(is_visible_T)) - np.repeat(starts[:-1], lengths_B + 1)
    visible_slots, target_slots = np.flatnonzero(is_visible_T), np.flatnonzero(~is_visible_T)
    visible_positions = positions_T[visible_slots]

    num_visible, num_targets = len(visible_slots), len(target_slots)
    is_class_token = visible_positions == 0  # the others are the visible patches, in the same order
    visible = np.zeros((_up(num_visible, pad_to), F), np.uint8)
    visible[:num_visible][~is_class_token] = patches_BN[is_real_BN & ~is_target_BN].reshape(-1, F)
    targets = np.zeros((_up(num_targets, pad_to), F), np.uint8)
    targets[:num_targets] = patches_BN[is_target_BN].reshape(-1, F)
    # Padding of the other two streams points to a slot that belongs to no text.
    is_padded = len(visible) > num_visible or len(targets) > num_targets
    num_tokens = _up(len(positions_T) + is_padded, pad_to)
    return {
        "visible_patches": visible,
        "visible_positions": _padded(visible_positions, len(visible), 0),
        "visible_slots": _padded(visible_slots, len(visible), num_tokens - 1),
        "visible_starts": visible_starts.astype(np.int32),
        "positions": _padded(positions_T, num_tokens, 0),
        "starts": starts.astype(np.int32),
        "target_patches": targets,
        "target_slots": _padded(target_slots, len(targets), num_tokens - 1),
        "target_weights": (np.arange(len(targets)) < num_targets).astype(np.float32),
        "lengths": lengths_B[:B].astype(np.int32),
    }


def _as_patches(pixels: NDArray[np.uint8], num_patches: int) -> NDArray[np.uint8]:
    """Divide (B, P, N * P, ...) into patches (B, N, P, P, ...), as a view."""
    B, P = pixels.shape[:2]
    if pixels.shape[2] != num_patches * P:
        raise ValueError(
            f"pixels {pixels.shape} and masks of {num_patches} patches: expected {num_patches * P} columns"
        )
    return pixels.reshape(B, P, num_patches, P, *pixels.shape[3:]).swapaxes(1, 2)


def _starts(lengths_B: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths_B)])


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _padded(values: NDArray[np.int64], length: int, filler: int) -> NDArray[np.int32]:
    padded = np.full(length, filler, np.int32)
    padded[: len(values)] = values
    return padded
