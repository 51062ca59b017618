"""Where the slots of each modality are, in a batch of the recipe. Torch-free.

Tokens of different modalities have tables of their own. Which slots belong to which is known on the host, so it is
counted there: a device would have to be waited for.

Dimensions: B rows, N slots of a row on one side.
"""

from collections.abc import Sequence

import numpy as np

from pretrainkit.recipes.fourm.modality import Modality

HostBatch = dict[str, np.ndarray]
SIDES = ("encoder", "decoder")


def with_places(batch: HostBatch, modalities: Sequence[Modality]) -> HostBatch:
    """The batch with `encoder_places/NAME` of every input and `decoder_places/NAME` of every target.

    They are int32 (n,), rising: the slots that hold a token of the modality, in the rows one after another.

    Args:
        batch: With `SIDE_length` (B,) and `SIDE_modality` (B, N) for both sides.
        modalities: By number.
    """
    found = dict(batch)
    for side in SIDES:
        modality_BN = batch[f"{side}_modality"]
        num_slots = modality_BN.shape[1]
        is_real_BN = np.arange(num_slots) < batch[f"{side}_length"][:, None]
        slots = np.flatnonzero(is_real_BN).astype(np.int32)
        number = modality_BN.reshape(-1)[slots]
        for index, modality in enumerate(modalities):
            if modality.is_input if side == "encoder" else modality.is_target:
                found[f"{side}_places/{modality.name}"] = slots[number == index]
    return found
