"""What is known of some examples while others of their modalities are generated. NumPy only.

Dimensions: B examples, P places of an image, C, H, W channels, height and width, L vectors of E numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.fourm.batch import HostBatch, continuous
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.sequences import Ids


@dataclass
class Places:
    """Tokens of an image modality."""

    ids_BP: Ids
    is_known_BP: NDArray[np.bool_]
    """Where a token is."""

    @classmethod
    def empty(cls, num: int, modality: Modality) -> "Places":
        """Of `num` examples of which nothing is known."""
        shape = (num, modality.max_tokens)
        return cls(np.zeros(shape, np.int32), np.zeros(shape, np.bool_))


@dataclass
class Known:
    """By name of a modality, for each example what is known of it; None: nothing."""

    num: int
    """B."""
    images: dict[str, Places] = field(default_factory=dict)
    sequences: dict[str, list[Ids | None]] = field(default_factory=dict)
    """Token ids; a sentinel stands where something is missing."""
    pixels: dict[str, list[NDArray[np.uint8] | None]] = field(default_factory=dict)
    """(C, H, W)."""
    vectors: dict[str, list[NDArray[np.float32] | None]] = field(default_factory=dict)
    """(L, E)."""

    def names(self) -> list[str]:
        """Of modalities of which something is known."""
        found = [name for name, places in self.images.items() if places.is_known_BP.any()]
        for kind in (self.sequences, self.pixels, self.vectors):
            found += [name for name, values in kind.items() if any(value is not None for value in values)]
        return found

    def take(self, rows: Sequence[int]) -> "Known":
        """The examples of `rows`; values are shared or copied."""

        def taken(kind: dict[str, list[Any]]) -> dict[str, list[Any]]:
            return {name: [values[row] for row in rows] for name, values in kind.items()}

        images = {n: Places(p.ids_BP[list(rows)], p.is_known_BP[list(rows)]) for n, p in self.images.items()}
        return Known(len(rows), images, taken(self.sequences), taken(self.pixels), taken(self.vectors))


View = frozenset[str]
"""Names of modalities that are hidden."""


def encoder_rows(
    known: Known, rows: Sequence[int], views: Sequence[View], modalities: Sequence[Modality], sentinel: int
) -> HostBatch:
    """The encoder's half of a batch: for each view all of `rows`, view by view.

    A hidden image is away; of a hidden sequence a sentinel is left (the id `sentinel`), as in training where all of it
    is to be predicted.
    """
    found = [
        [
            (number, *tokens)
            for number, modality in enumerate(modalities)
            if modality.is_input and (tokens := _tokens(known, row, modality, modality.name in view, sentinel))
        ]
        for view in views
        for row in rows
    ]
    lengths = np.array([sum(len(ids) for _, _, ids in parts) for parts in found], np.int32)
    num_slots = max(1, int(lengths.max(initial=1)))
    batch: HostBatch = {"encoder_length": lengths}
    for what, dtype in (("segment", np.uint8), ("modality", np.uint8), ("position", np.int32), ("ids", np.int32)):
        batch[f"encoder_{what}"] = np.zeros((len(found), num_slots), dtype)
    for row, parts in enumerate(found):
        start = 0
        for number, positions, ids in parts:
            slots = slice(start, start + len(ids))
            batch["encoder_modality"][row, slots] = number
            batch["encoder_position"][row, slots] = positions
            batch["encoder_ids"][row, slots] = ids
            start = slots.stop
    own = known.take(rows)
    whole = {name: values * len(views) for kind in (own.pixels, own.vectors) for name, values in kind.items()}
    return batch | continuous(modalities, len(found), whole)


def _tokens(known: Known, row: int, modality: Modality, is_hidden: bool, sentinel: int) -> tuple[Ids, Ids] | None:
    """Positions and ids of what the encoder sees of a modality."""
    name = modality.name
    if modality.kind == "image" and name in known.images:
        places = known.images[name]
        seen = np.flatnonzero(places.is_known_BP[row] & (not is_hidden)).astype(np.int32)
        return seen, places.ids_BP[row][seen]
    if modality.kind == "pixels" and known.pixels.get(name, [None] * known.num)[row] is not None:
        seen = np.arange(0 if is_hidden else modality.max_tokens, dtype=np.int32)
        return seen, seen
    if modality.kind in ("sequence", "vectors"):
        given = (known.sequences if modality.kind == "sequence" else known.vectors).get(name, [None] * known.num)[row]
        if given is None:
            return None
        # The ids of vectors are their numbers, and -1 is zeros.
        hidden, whole = (sentinel, given) if modality.kind == "sequence" else (-1, np.arange(len(given)))
        ids = np.array([hidden], np.int32) if is_hidden else np.asarray(whole, np.int32)
        positions = np.arange(len(ids), dtype=np.int32)
        return np.where(positions < modality.max_length, positions, 0).astype(np.int32), ids
    return None


def decoder_rows(places: Sequence[Ids], number: int, num_views: int) -> HostBatch:
    """The decoder's half: for each view, the same places of image modality `number`, ascending for each example."""
    num_slots = max(1, *(len(own) for own in places))
    position_BM = np.zeros((len(places), num_slots), np.int32)
    for row, own in enumerate(places):
        position_BM[row, : len(own)] = own
    length_B = np.array([len(own) for own in places], np.int32)
    batch: HostBatch = {
        "decoder_length": np.tile(length_B, num_views),
        "decoder_position": np.tile(position_BM, (num_views, 1)),
        "decoder_modality": np.full((num_views * len(places), num_slots), number, np.uint8),
    }
    for what, dtype in (("segment", np.uint8), ("ids", np.int32), ("target", np.int32)):
        batch[f"decoder_{what}"] = np.zeros((num_views * len(places), num_slots), dtype)
    return batch
