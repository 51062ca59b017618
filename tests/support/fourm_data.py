"""A small data set with photographs, depth, classes, captions and boxes that belong together, and its tokenizer."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer

CLASSES = ("ball", "box", "wine glass")
COLORS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 60, 220)}


def write_set(folder: Path, num: int, seed: int) -> Path:
    """`num` scenes of one coloured shape each, with a folder for each modality."""
    rng = np.random.default_rng(seed)
    for index in range(num):
        color, kind = str(rng.choice(list(COLORS))), int(rng.integers(len(CLASSES)))
        left, top = (int(value) for value in rng.integers(0, 20, 2))
        image = np.full((40, 40, 3), 230, np.uint8)
        depth, classes = np.full((40, 40), 200, np.uint8), np.zeros((40, 40), np.uint8)
        window = slice(top, top + 18), slice(left, left + 18)
        image[window], depth[window], classes[window] = COLORS[color], 60 + 40 * kind, kind + 1
        for name, pixels in (("rgb", image), ("depth", depth), ("seg", classes)):
            Image.fromarray(pixels).save(_place(folder, name, index, ".png"))
        boxes = [value / 40 for value in (left, top, left + 18, top + 18)]
        instance = {"boxes": boxes, "class_name": CLASSES[kind], "score": 1.0}
        _place(folder, "det", index, ".json").write_text(json.dumps({"instances": [instance]}), "utf-8")
        _place(folder, "caption", index, ".txt").write_text(f"a {color} {CLASSES[kind]}", "utf-8")
    return folder


def write_tokenizer(folder: Path, num_sentinels: int = 40) -> Path:
    """The vocabulary of captions and boxes."""
    words = folder.with_suffix(".tsv")
    words.write_text("".join(f"{word}\t9\n" for word in ("a", *COLORS)), "utf-8")
    least = 4 + num_sentinels + 4 * 1000 + len(CLASSES)
    settings = TokenizerSettings(
        kind="multimodal", vocab_size=least + 12, classes=CLASSES, num_sentinels=num_sentinels, lowercase=True
    )
    train_tokenizer([words], folder, settings)
    return folder


def _place(folder: Path, modality: str, index: int, suffix: str) -> Path:
    path = folder / modality / "0000" / f"{index:05d}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
