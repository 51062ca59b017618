"""Generated sets of image-text pairs in every format, and tokenizers for them."""

import csv
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer

WORDS = [
    "a",
    "the",
    "red",
    "blue",
    "green",
    "small",
    "large",
    "dog",
    "cat",
    "bird",
    "car",
    "tree",
    "house",
    "on",
    "near",
]
WORDS += ["under", "runs", "sits", "jumps", "bright"]
COLUMNS = ("image", "image_id", "caption", "caption_id")


def png(number: int, size: tuple[int, int] = (20, 16)) -> bytes:
    """A file of noise that differs with `number`."""
    from PIL import Image

    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def caption(number: int) -> str:
    """Six words that differ with `number`."""
    rng = np.random.default_rng(10_000 + number)
    return " ".join(rng.choice(WORDS, 6)) + f" {number}"


def rows(num_images: int, captions_per_image: int = 2, first: int = 0) -> list[dict[str, Any]]:
    """Return rows of an annotation file; ids beyond 32 bits."""
    return [
        {
            "image": f"{image:04d}.png",
            "image_id": 2**40 + image,
            "caption": caption(image * captions_per_image + number),
            "caption_id": 2**37 + image * captions_per_image + number,
        }
        for image in range(first, first + num_images)
        for number in range(captions_per_image)
    ]


def write_csv_set(
    folder: Path, split: str, content: Sequence[Mapping[str, Any]], columns: Iterable[str] = COLUMNS
) -> Path:
    """SET/SPLIT_anno.csv and the images, numbered by the digits of their names."""
    (folder / split).mkdir(parents=True, exist_ok=True)
    with open(folder / f"{split}_anno.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(columns), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(content)
    for name in {row["image"] for row in content}:
        (folder / split / name).write_bytes(png(int(Path(name).stem)))
    return folder


def write_samples(path: Path, samples: Iterable[Mapping[str, bytes]]) -> Path:
    """A tar of samples: ending to content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number, sample in enumerate(samples):
            for ending, content in sample.items():
                entry = tarfile.TarInfo(f"{number:05d}.{ending}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return path


def as_json(**values: Any) -> bytes:
    return json.dumps(values).encode()


def make_tokenizer(folder: Path, kind: str = "wordpiece", vocab_size: int = 80) -> Path:
    """From the words of the captions."""
    words = folder.with_suffix(".tsv")
    counts = dict.fromkeys(WORDS, 50) | {str(number): 3 for number in range(40)}
    words.write_text("".join(f"{word}\t{count}\n" for word, count in counts.items()))
    train_tokenizer([words], folder, TokenizerSettings(kind=kind, vocab_size=vocab_size))
    return folder
