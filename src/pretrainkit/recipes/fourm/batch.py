"""Batches of the 4M recipe in host memory. This module does not import torch.

Dimensions: B rows, N slots of an encoder row, M slots of a decoder row.

All arrays start with dimension B. The real slots of a row come first, zeros follow:

* `encoder_length`, `decoder_length` int32 (B,): number of real slots.
* `encoder_segment` uint8 (B, N), `decoder_segment` (B, M): index of the segment (an independent draw) from 0.
* `encoder_modality`, `decoder_modality` uint8: index in `model.modalities`.
* `encoder_position`, `decoder_position` int32: position in the grid, or index among the visible tokens of a sequence.
* `encoder_ids` int32: token id; for pixels the index of the patch; for vectors the row of `vectors/NAME`, or -1 for a
  sentinel.
* `decoder_ids` int32: for sequences the previous token, for images 0. `decoder_target` int32: the token to predict.
* `pixels/NAME` uint8 (B, C, H, W), `vectors/NAME` float32 (B, L, E): complete contents.
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
"""Tokens of one modality in a row: index of the modality, positions and ids."""


def with_places(batch: HostBatch, modalities: Sequence[Modality]) -> HostBatch:
    """Return the batch with `encoder_places/NAME` for every input and `decoder_places/NAME` for every target. Each is
    int32 (n,), ascending: the slots with a token of the modality, as indices into all rows end to end. Modalities have
    separate embedding tables. The host computes the slots, because computing them on a device would wait for it."""
    extended = dict(batch)
    for side in ("encoder", "decoder"):
        modality_BN = batch[f"{side}_modality"]
        is_real_BN = np.arange(modality_BN.shape[1]) < batch[f"{side}_length"][:, None]
        slots = np.flatnonzero(is_real_BN).astype(np.int32)
        number = modality_BN.reshape(-1)[slots]
        for index, modality in enumerate(modalities):
            if modality.is_input if side == "encoder" else modality.is_target:
                extended[f"{side}_places/{modality.name}"] = slots[number == index]
    return extended


def continuous(modalities: Sequence[Modality], num: int, contents: Mapping[str, Sequence[Any]]) -> HostBatch:
    """Return `pixels/NAME` and `vectors/NAME` with `num` rows each; rows without content are zeros."""
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
    """Return `num` rows of the encoder or decoder (`side`) without tokens."""
    dtypes = {"segment": np.uint8, "modality": np.uint8, "position": np.int32, "ids": np.int32}
    dtypes |= {"target": np.int32} if side == "decoder" else {}
    rows = {f"{side}_{name}": np.zeros((num, num_slots), dtype) for name, dtype in dtypes.items()}
    return {f"{side}_length": np.zeros(num, np.int32), **rows}


def filled_rows(side: str, rows: Sequence[Sequence[Piece]]) -> HostBatch:
    """Return rows of the encoder or decoder with one segment each, as wide as the longest row."""
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
    """Return a batch whose examples fill all slots of encoder and decoder evenly from all modalities."""
    batch: HostBatch = {}
    modalities, masking = config.model.modalities, config.masking
    for side, num_slots in (("encoder", masking.num_input_tokens), ("decoder", masking.num_target_tokens)):
        of_side = [n for n, m in enumerate(modalities) if (m.is_input if side == "encoder" else m.is_target)]
        # Take one token of each modality in turn, until the modality has no more.
        turns = sorted((place, number) for number in of_side for place in range(modalities[number].max_tokens))
        counts = Counter(number for _, number in turns[:num_slots])
        pieces = []
        for number, count in sorted(counts.items()):
            places = np.arange(count, dtype=np.int32)
            pieces.append((number, places, places * (modalities[number].kind == "pixels")))
        batch |= filled_rows(side, [pieces] * num_examples)
    return with_places(batch | continuous(modalities, num_examples, {}), modalities)
