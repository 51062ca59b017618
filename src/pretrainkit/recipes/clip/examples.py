"""Pairs for `pretrainkit data check`: unusable pairs, augmented images and the tokens of captions."""

import numpy as np

from pretrainkit.data.source import Records
from pretrainkit.images.pillow import thumbnail
from pretrainkit.recipes.capabilities import StoredRecord
from pretrainkit.recipes.clip.config import ClipRun, ClipSourceConfig
from pretrainkit.recipes.clip.open_pairs import open_pairs
from pretrainkit.recipes.clip.pairs import REASONS, BadImage
from pretrainkit.recipes.clip.scan import scan
from pretrainkit.recipes.clip.source import ClipSource
from pretrainkit.recipes.recipe import Split
from pretrainkit.training.watch import Sample
from pretrainkit.workers.processes import Progress

_HEIGHT = 128
"""Height of a picture in pixels."""


def check_files(config: ClipRun, progress: Progress) -> list[str]:
    """Return messages on images and captions that cannot be used: for each set and reason a few examples, and the
    number of the others."""
    sets: tuple[tuple[Split, tuple[ClipSourceConfig, ...]], ...] = (
        ("train", config.data.train),
        ("valid", config.data.valid),
    )
    problems = []
    for split, sources in sets:
        for source in sources:
            for reason, bad in scan(open_pairs(source, split), progress=progress)["bad"].items():
                problems += bad["examples"]
                if num_left := bad.get("images", bad["count"]) - len(bad["examples"]):
                    problems.append(f"{source.path}: {num_left:,} more in data.{split} with the problem: {reason}")
    return problems


def show_examples(config: ClipRun, source: ClipSource, records: Records) -> list[Sample]:
    """Return the image of each pair after augmentation, its caption as tokens, and the reason if another row replaces
    it."""
    batch, pieces, examples = source.build(records), source.tokenizer.pieces, list[Sample]()
    images_B3HW = batch["image"]
    if images_B3HW.dtype != np.uint8:  # normalized, because of random erasing
        assert config.data.normalize is not None
        mean, deviation = (np.array(values, np.float32)[:, None, None] for values in config.data.normalize)
        images_B3HW = ((images_B3HW * deviation + mean) * 255).round().clip(0, 255).astype(np.uint8)
    for row, image_3HW in enumerate(images_B3HW):
        ids = batch["input_ids"][row, : batch["num_tokens"][row]].tolist()
        size = f"{image_3HW.shape[1]} x {image_3HW.shape[2]}"
        example: dict[str, object] = {
            "image": [{"image": thumbnail(image_3HW, _HEIGHT, format="PNG"), "text": f"picture of {size} pixels"}],
            "caption": f"[{len(ids)}] " + " ".join(pieces[index] for index in ids),
        }
        examples.append(example | ({"replaced": REASONS[batch["bad"][row]]} if batch["bad"][row] else {}))
    return examples


def stored_records(source: ClipSource, records: Records) -> list[StoredRecord]:
    """Return captions and image files. Records with the same image count as copies."""
    stored = []
    for number, row in zip(records.source.tolist(), records.index.tolist(), strict=True):
        pairs = source.sets[number]
        try:
            content = pairs.read_image(row)
        except BadImage:
            content = b""
        stored.append(StoredRecord(pairs.describe(row), pairs.caption(row), content))
    return stored
