"""Batches of the 4M recipe, on the host. Torch-free.

Dimensions: B samples, N slots of the encoder, M of the decoder.

Arrays start with B; real slots come first in each row, zeros behind:

* `encoder_length`, `decoder_length` int32 (B,): real slots.
* `encoder_segment` uint8 (B, N), `decoder_segment` (B, M): draws that know nothing of each other, 0, 1, …
* `encoder_modality`, `decoder_modality` uint8: numbers in `model.modalities`.
* `encoder_position`, `decoder_position` int32: place in the grid, or number among the visible tokens of a sequence.
* `encoder_ids` int32: token; of pixels the place of the patch; of vectors the row of `vectors/NAME`, -1 for a sentinel.
* `decoder_ids` int32: of sequences the token before, of images 0. `decoder_target` int32: the token to predict.
* `pixels/NAME` uint8 (B, C, H, W), `vectors/NAME` float32 (B, L, E): whole contents.
* `encoder_places/NAME`, `decoder_places/NAME`: the slots of each modality, see `with_places`.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from pretrainkit.recipes.fourm.config import FourMRun
from pretrainkit.recipes.fourm.modality import Modality

HostBatch = dict[str, np.ndarray]


def with_places(batch: HostBatch, modalities: Sequence[Modality]) -> HostBatch:
    """The batch with `encoder_places/NAME` of every input and `decoder_places/NAME` of every target.

    They are int32 (n,), rising: the slots that hold a token of the modality, in the rows one after another. Tokens of
    different modalities have tables of their own. Which slots belong to which is counted here, on the host: a device
    would have to be waited for.
    """
    found = dict(batch)
    for side in ("encoder", "decoder"):
        modality_BN = batch[f"{side}_modality"]
        is_real_BN = np.arange(modality_BN.shape[1]) < batch[f"{side}_length"][:, None]
        slots = np.flatnonzero(is_real_BN).astype(np.int32)
        number = modality_BN.reshape(-1)[slots]
        for index, modality in enumerate(modalities):
            if modality.is_input if side == "encoder" else modality.is_target:
                found[f"{side}_places/{modality.name}"] = slots[number == index]
    return found


def continuous(modalities: Sequence[Modality], num: int, contents: Mapping[str, Sequence[Any]]) -> HostBatch:
    """`pixels/NAME` and `vectors/NAME` of `num` rows, by name what each row has of it; zeros where that is None."""
    out: HostBatch = {}
    for modality in modalities:
        if modality.kind == "pixels":
            size = modality.image_size or 0
            values = np.zeros((num, modality.num_channels or 0, size, size), np.uint8)
        elif modality.kind == "vectors":
            values = np.zeros((num, modality.max_tokens, modality.vector_width or 0), np.float32)
        else:
            continue
        for row, content in zip(values, contents.get(modality.name, ()), strict=False):
            if content is not None:
                row[: len(content)] = content
        out[f"{modality.kind}/{modality.name}"] = values
    return out


def assumed_batch(config: FourMRun, num_examples: int) -> HostBatch:
    """Examples that fill all slots of encoder and decoder, evenly from all modalities."""
    batch: HostBatch = {}
    modalities, masking = config.model.modalities, config.masking
    for side, num_slots in (("encoder", masking.num_input_tokens), ("decoder", masking.num_target_tokens)):
        of_side = [n for n, one in enumerate(modalities) if (one.is_input if side == "encoder" else one.is_target)]
        pairs = sorted((place, number) for number in of_side for place in range(modalities[number].max_tokens))
        # One token of each in turn, as long as it has any; then those of a modality side by side.
        chosen = np.array(sorted(pairs[:num_slots], key=itemgetter(1)))
        place_N, modality_N = chosen[:, 0].astype(np.int32), chosen[:, 1].astype(np.uint8)
        is_pixel_N = np.array([modalities[number].kind == "pixels" for number in modality_N])
        batch[f"{side}_length"] = np.full(num_examples, len(modality_N), np.int32)
        for name, values in (
            ("segment", np.zeros_like(modality_N)),
            ("modality", modality_N),
            ("position", place_N),
            ("ids", place_N * is_pixel_N),
            *([("target", np.zeros_like(place_N))] if side == "decoder" else []),
        ):
            batch[f"{side}_{name}"] = np.tile(values, (num_examples, 1))
    return with_places(batch | continuous(modalities, num_examples, {}), modalities)
