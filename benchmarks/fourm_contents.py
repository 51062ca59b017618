"""Random contents of 4M samples, with texts of ordinary lengths."""

from collections.abc import Sequence

import numpy as np

from pretrainkit.recipes.fourm.masking import Contents
from pretrainkit.recipes.fourm.modality import Modality
from pretrainkit.recipes.fourm.sequences import Ragged

LENGTHS = {
    "caption": (9, 21),
    "det": (1, 71),
    "metadata": (39, 40),
    "color_palette": (5, 24),
    "human_poses": (2, 160),
    "sam_instance": (86, 275),
    "t5_caption": (10, 30),
}
"""Lengths of sequences with their end tokens, and counts of vectors: minimum, and maximum plus one."""


def make_contents(
    modalities: Sequence[Modality], num: int, ids: tuple[int, int], generator: np.random.Generator
) -> tuple[Contents, dict[str, np.ndarray]]:
    """Return the tokens of `num` samples, and their pixels and vectors as in a batch.

    Args:
        modalities: Modalities of the model.
        num: Number of samples.
        ids: Range of word ids: minimum, and maximum plus one.
        generator: Generator of all random contents.
    """
    images, sequences, values = {}, {}, {}
    for number, modality in enumerate(modalities):
        if modality.kind == "image":
            images[number] = generator.integers(0, modality.vocab_size, (num, modality.max_tokens)).astype(np.int32)
        elif modality.kind == "pixels":
            shape = (num, modality.num_channels, modality.image_size, modality.image_size)
            values[f"pixels/{modality.name}"] = generator.integers(0, 256, shape, np.uint8)
        else:
            lengths = np.minimum(generator.integers(*LENGTHS[modality.key], num), modality.max_tokens)
            total = int(lengths.sum())
            if modality.kind == "vectors":
                shape = (num, modality.max_tokens, modality.vector_width)
                values[f"vectors/{modality.name}"] = generator.normal(size=shape).astype(np.float32)
                own_ids = np.concatenate([np.arange(length) for length in lengths])
            else:
                own_ids = generator.integers(*ids, total)
            sequences[number] = Ragged(own_ids.astype(np.int32), lengths)
    return Contents(num, images, sequences), values
