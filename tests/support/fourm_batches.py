"""Small modalities and random batches of the recipe, as its data plane makes them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pretrainkit.recipes.fourm.batch import with_places
from pretrainkit.recipes.fourm.config import FourMModelConfig
from pretrainkit.recipes.fourm.modality import Modality

VOCABULARY = 40
RGB = Modality(name="rgb@32", kind="pixels", is_target=False, image_size=32, patch_size=8, num_channels=3, reader="rgb")
DEPTH = Modality(name="tok_depth@32", kind="image", vocab_size=24, image_size=32, patch_size=8, reader="tokens")
GLOBAL = Modality(
    name="tok_global",
    kind="image",
    vocab_size=12,
    image_size=32,
    patch_size=16,
    has_learned_positions=True,
    reader="tokens",
)
CAPTION = Modality(name="caption", kind="sequence", vocab_size=VOCABULARY, length=10, reader="caption")
BOXES = Modality(name="det", kind="sequence", vocab_size=VOCABULARY, length=14, num_positions=5, reader="boxes")
VECTORS = Modality(name="t5", kind="vectors", is_target=False, length=6, vector_width=9, reader="vectors")
MODALITIES = (CAPTION, BOXES, RGB, VECTORS, DEPTH, GLOBAL)


def small(modalities: Sequence[Modality] = MODALITIES, **changes: Any) -> FourMModelConfig:
    """A model of two layers."""
    settings: dict[str, Any] = {
        "hidden_size": 16,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 2,
        "intermediate_size": 21,
    }
    return FourMModelConfig(modalities=tuple(modalities), **(settings | changes))


def random_batch(
    modalities: Sequence[Modality] = MODALITIES,
    *,
    num_rows: int = 3,
    num_inputs: int = 30,
    num_targets: int = 28,
    num_segments: int = 2,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Rows of examples with random tokens of random modalities; the last slots are padding."""
    rng = np.random.default_rng(seed)
    batch: dict[str, np.ndarray] = {}
    for side, num_slots in (("encoder", num_inputs), ("decoder", num_targets)):
        rows = [_row(rng, row, modalities, side, num_slots, num_segments) for row in range(num_rows)]
        batch[f"{side}_length"] = np.array([len(row) for row in rows], np.int32)
        names = ("segment", "modality", "position", "ids", "target")
        for column, name in enumerate(names[: 5 if side == "decoder" else 4]):
            values = np.zeros((num_rows, num_slots), np.uint8 if name in ("segment", "modality") else np.int32)
            for number, row in enumerate(rows):
                values[number, : len(row)] = [token[column] for token in row]
            batch[f"{side}_{name}"] = values
    for modality in modalities:
        if modality.kind == "pixels":
            shape = (num_rows, modality.num_channels, modality.image_size, modality.image_size)
            batch[f"pixels/{modality.name}"] = rng.integers(0, 256, shape, dtype=np.uint8)
        if modality.kind == "vectors":
            shape = (num_rows, modality.max_tokens, modality.vector_width)
            batch[f"vectors/{modality.name}"] = rng.normal(size=shape).astype(np.float32)
    return with_places(batch, modalities)


def _row(
    rng: np.random.Generator, row: int, modalities: Sequence[Modality], side: str, num_slots: int, num_segments: int
) -> list[tuple[int, int, int, int, int]]:
    tokens: list[tuple[int, int, int, int, int]] = []
    for segment in range(num_segments):
        for number, modality in enumerate(modalities):
            if not (modality.is_input if side == "encoder" else modality.is_target):
                continue
            num = int(rng.integers(0, min(modality.max_tokens // 2, 5) + 1))
            ids = rng.integers(0, modality.vocab_size or 1, num)
            true = rng.integers(0, modality.vocab_size or 1, num)
            if modality.kind in ("pixels", "image"):
                # The same on both sides, so that no token of an image is input and target.
                order = np.random.default_rng((row, segment, number)).permutation(modality.max_tokens)
                places = np.sort(order[:num] if side == "encoder" else order[-num:] if num else order[:0])
                ids = places if modality.kind == "pixels" else ids if side == "encoder" else np.zeros(num, np.int64)
            else:
                places = np.arange(num)
            if modality.kind == "vectors":
                ids = rng.integers(-1, modality.max_tokens, num)
            elif side == "decoder" and modality.kind == "sequence":
                text = rng.integers(0, modality.vocab_size or 1, num + 1)
                ids, true = text[:-1], text[1:]
                places = np.where(places < modality.max_length, places, 0)
            tokens += zip([segment] * num, [number] * num, places.tolist(), ids.tolist(), true.tolist(), strict=True)
    return tokens[:num_slots]


def tensors(batch: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Return the tensors that the model reads."""
    return {name: torch.from_numpy(values) for name, values in batch.items()}
