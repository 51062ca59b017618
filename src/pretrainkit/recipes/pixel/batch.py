"""Rendered texts with their masks to the streams that the model reads. Torch-free.

Every real patch occurs once: either in the stream of the encoder, or among those to predict. Nothing after the end
patch of a text is ever computed on. Everything that a shape depends on is decided here, on the host, so that a device
never waits.

Dimensions: B texts, P pixels of a patch's side, N patches of a row, C = 3 colours (absent in grey), F = P x P (x C)
values of a patch, row by row, column by column, colour fastest; V tokens of the encoder and T of the decoder, class
tokens included, both text after text; K patches to predict.
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
    """The batch of these texts.

    Args:
        pixels: uint8 (B, P, N * P) or (B, P, N * P, C).
        num_text_patches_B: Patches before each text's end patch, at most N - 1.
        is_masked_BN: Patches to hide; what is hidden behind the end patch does not matter.
        pad_to: V, T and K are rounded up to multiples of this.

    Returns:
        visible_patches: uint8 (V, F); a class token's are 0.
        visible_positions: int32 (V,), 0 for class tokens, 1 + i for patch i; 0 in padding.
        visible_slots: int32 (V,), where in the decoder's stream the token is; padding in its last slot.
        visible_starts: int32 (B + 1,), where each text begins, and the end of the last.
        positions: int32 (T,), the same for the decoder.
        starts: int32 (B + 1,), the same for the decoder.
        target_patches: uint8 (K, F), the hidden patches.
        target_slots: int32 (K,), where in the decoder's stream they are; rising.
        target_weights: float32 (K,), 1, and 0 in padding.
        lengths: int32 (B,), patches of each text with its end patch.
    """
    B, N = is_masked_BN.shape
    lengths_B = np.asarray(num_text_patches_B, np.int64) + 1
    if B == 0:  # a class token alone, so that every parameter has its (zero) gradient
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
    is_visible_T[starts[row] + 1 + column] = ~is_target_BN[is_real_BN]  # 1: behind the text's class token
    positions_T = np.arange(len(is_visible_T)) - np.repeat(starts[:-1], lengths_B + 1)
    visible_slots, target_slots = np.flatnonzero(is_visible_T), np.flatnonzero(~is_visible_T)
    visible_positions = positions_T[visible_slots]

    num_visible, num_targets = len(visible_slots), len(target_slots)
    is_class_token = visible_positions == 0  # the others are the visible patches, in the same order
    visible = np.zeros((_up(num_visible, pad_to), F), np.uint8)
    visible[:num_visible][~is_class_token] = patches_BN[is_real_BN & ~is_target_BN].reshape(-1, F)
    targets = np.zeros((_up(num_targets, pad_to), F), np.uint8)
    targets[:num_targets] = patches_BN[is_target_BN].reshape(-1, F)
    # Padding of the other two streams goes to a slot that no text has.
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
    """(B, P, N * P, ...) to (B, N, P, P, ...), a view."""
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
    found = np.full(length, filler, np.int32)
    found[: len(values)] = values
    return found
