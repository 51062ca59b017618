"""Batches of the 4M recipe, on the host. Torch-free.

Dimensions: B samples, N slots of the encoder, M of the decoder.

Arrays start with B; real slots come first in each row, zeros behind:

* `encoder_length`, `decoder_length` int32 (B,): real slots.
* `encoder_segment` uint8 (B, N), `decoder_segment` (B, M): index of the independent draw, 0, 1, …
* `encoder_modality`, `decoder_modality` uint8: numbers in `model.modalities`.
* `encoder_position`, `decoder_position` int32: place in the grid, or number among the visible tokens of a sequence.
* `encoder_ids` int32: token; of pixels the place of the patch; of vectors the row of `vectors/NAME`, -1 for a sentinel.
* `decoder_ids` int32: of sequences the token before, of images 0. `decoder_target` int32: the token to predict.
* `pixels/NAME` uint8 (B, C, H, W), `vectors/NAME` float32 (B, L, E): whole contents.
* `encoder_places/NAME`, `decoder_places/NAME`: the slots of each modality, see `with_places`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.fourm.config import FourMRun
from pretrainkit.recipes.fourm.modality import Modality

HostBatch = dict[str, np.ndarray]
Piece = tuple[int, NDArray[np.integer], NDArray[np.integer]]
"""Tokens of one modality in a row: its number, their positions and their ids."""


def with_places(batch: HostBatch, modalities: Sequence[Modality]) -> HostBatch:
    """Return the batch with `encoder_places/NAME` of every input and `decoder_places/NAME` of every target: int32 (n,),
    rising, the slots that hold a token of the modality, in the rows one after another. Tokens of different modalities
    have tables of their own. The slots are counted here, on the host: a device would have to be waited for."""
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
    """Return `pixels/NAME` and `vectors/NAME` of `num` rows by name; zeros where a content is None."""
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


def empty_rows(side: str, num: int, num_slots: int) -> HostBatch:
    """Return `num` rows of encoder or decoder without tokens."""
    dtypes = {"segment": np.uint8, "modality": np.uint8, "position": np.int32, "ids": np.int32}
    dtypes |= {"target": np.int32} if side == "decoder" else {}
    rows = {f"{side}_{name}": np.zeros((num, num_slots), dtype) for name, dtype in dtypes.items()}
    return {f"{side}_length": np.zeros(num, np.int32), **rows}


def filled_rows(side: str, rows: Sequence[Sequence[Piece]]) -> HostBatch:
    """Return rows of encoder or decoder with one segment of the given pieces, as wide as the longest row."""
    lengths = [sum(len(ids) for _, _, ids in pieces) for pieces in rows]
    batch = empty_rows(side, len(rows), max(1, *lengths))
    batch[f"{side}_length"][:] = lengths
    for row, pieces in enumerate(rows):
        start = 0
        for number, positions, ids in pieces:
            slots = slice(start, start + len(ids))
            batch[f"{side}_modality"][row, slots] = number
            batch[f"{side}_position"][row, slots] = positions
            batch[f"{side}_ids"][row, slots] = ids
            start = slots.stop
    return batch


def assumed_batch(config: FourMRun, num_examples: int) -> HostBatch:
    """Return examples that fill all slots of encoder and decoder evenly from all modalities."""
    batch: HostBatch = {}
    modalities, masking = config.model.modalities, config.masking
    for side, num_slots in (("encoder", masking.num_input_tokens), ("decoder", masking.num_target_tokens)):
        of_side = [n for n, one in enumerate(modalities) if (one.is_input if side == "encoder" else one.is_target)]
        # One token of each in turn, as long as it has any.
        turns = sorted((place, number) for number in of_side for place in range(modalities[number].max_tokens))
        counts = Counter(number for _, number in turns[:num_slots])
        pieces = []
        for number, count in sorted(counts.items()):
            places = np.arange(count, dtype=np.int32)
            pieces.append((number, places, places * (modalities[number].kind == "pixels")))
        batch |= filled_rows(side, [pieces] * num_examples)
    return with_places(batch | continuous(modalities, num_examples, {}), modalities)
