"""Generated samples of the published modalities, with texts of ordinary length."""

import numpy as np

from pretrainkit.recipes.fourm.masking import Contents
from pretrainkit.recipes.fourm.sequences import Ragged, spans

FIRST_ID = 4300


def lengths_of(key, num, generator):
    """Tokens of each of `num` sequences of a modality, end marks included."""
    people = generator.integers(0, 4, num)
    drawn = {
        "caption": lambda: generator.integers(8, 25, num),
        "det": lambda: 1 + 5 * generator.integers(0, 14, num),
        "metadata": lambda: np.full(num, 40),
        "human_poses": lambda: np.where(people, 1 + 39 * people, 2),
        "color_palette": lambda: 2 + 3 * generator.integers(1, 8, num),
        "sam_instance": lambda: 22 + 21 * generator.integers(3, 13, num),
        "t5_caption": lambda: generator.integers(10, 30, num),
    }
    return drawn[key]()


def contents_of(modalities, num, seed=0):
    """Draw the contents of `num` samples."""
    generator = np.random.default_rng(seed)
    images, sequences = {}, {}
    for number, modality in enumerate(modalities):
        if modality.kind == "image":
            images[number] = generator.integers(0, modality.vocab_size, (num, modality.max_tokens)).astype(np.int32)
        elif modality.kind in ("sequence", "vectors"):
            lengths = np.minimum(lengths_of(modality.key, num, generator), modality.max_tokens).astype(np.int64)
            places = spans(np.zeros_like(lengths), lengths)
            units = (places // 2).astype(np.int32) if modality.key == "metadata" else None
            sequences[number] = Ragged((FIRST_ID + places).astype(np.int32), lengths, units)
    return Contents(num, images, sequences)
