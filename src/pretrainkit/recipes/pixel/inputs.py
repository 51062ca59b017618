"""From a batch of `batch.pack` to what the model reads, on its device.

Dimensions: as in `batch.py`.
"""

from dataclasses import dataclass

from torch import Tensor

from pretrainkit.nn.attention import AttentionLayout
from pretrainkit.nn.layouts import stream_layout
from pretrainkit.training.objective import Batch


@dataclass(frozen=True, eq=False)
class PixelInputs:
    """What the model reads."""

    patches_VF: Tensor
    """uint8: of every visible token; anything for class tokens."""
    visible_positions_V: Tensor
    """int32: 0 for class tokens, 1 + i for patch i."""
    visible_slots_V: Tensor
    """int64: where in the decoder's stream each is."""
    visible_layout: AttentionLayout
    """Where the texts lie in the encoder's stream."""
    positions_T: Tensor
    """int32: as `visible_positions_V`, of the decoder's tokens."""
    layout: AttentionLayout
    """Where the texts lie in the decoder's stream."""
    target_slots_K: Tensor
    """int64: what to predict, in the decoder's stream."""


def read_batch(batch: Batch, max_patches: int) -> PixelInputs:
    """The inputs in a batch.

    Args:
        batch: Tensors on the model's device.
        max_patches: No text has more.
    """
    return PixelInputs(
        patches_VF=batch["visible_patches"],
        visible_positions_V=batch["visible_positions"],
        visible_slots_V=batch["visible_slots"].long(),
        visible_layout=stream_layout(batch["visible_starts"], max_patches + 1, len(batch["visible_positions"])),
        positions_T=batch["positions"],
        layout=stream_layout(batch["starts"], max_patches + 1, len(batch["positions"])),
        target_slots_K=batch["target_slots"].long(),
    )
