"""Rows of the demo's text-to-text task: paragraphs of prose about Python and the part of Python they are about."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

NUM_PARTS = 6
"""The parts with most paragraphs: which they are differs between installations of Python."""
MIN_CHARACTERS, MAX_CHARACTERS = 60, 300
"""Of a paragraph. Shorter ones could be about anything, longer ones are cut by the model."""
HELD_OUT_SHARE = 0.15


class Rows(NamedTuple):
    """How many rows were written, and what guessing the most frequent part scores."""

    num_train: int
    num_held_out: int
    parts: list[str]
    """From the most frequent to the least."""
    majority_percent: float
    """Of the held-out rows that are about the part most frequent in training."""


def write_rows(folder: Path, documents: Iterable[tuple[str, str]]) -> Rows:
    """Write `train.jsonl` and `validation.jsonl` of rows {"paragraph", "part"} into `folder`, a new one.

    Held-out rows are chosen by a hash of the paragraph, so that no text lies on both sides.

    Args:
        folder: To be made.
        documents: (name, text) with a paragraph per line, as `prose.standard_library_documents` gives them.
    """
    found: dict[str, str] = {}
    for name, text in documents:
        for paragraph in text.split("\n"):
            if MIN_CHARACTERS <= len(paragraph) <= MAX_CHARACTERS:
                found.setdefault(paragraph, part_of(name))
    parts = [part for part, _ in Counter(found.values()).most_common(NUM_PARTS)]
    rows: dict[bool, list[dict[str, str]]] = {False: [], True: []}
    for paragraph, part in found.items():
        if part in parts:
            rows[_is_held_out(paragraph)].append({"paragraph": paragraph, "part": part})
    folder.mkdir()
    for name, is_held_out in (("train", False), ("validation", True)):
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows[is_held_out])
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    majority = Counter(row["part"] for row in rows[False]).most_common(1)[0][0]
    share = sum(row["part"] == majority for row in rows[True]) / len(rows[True])
    return Rows(len(rows[False]), len(rows[True]), parts, 100 * share)


def part_of(document: str) -> str:
    """`reference` of the language reference's documents, else the module or package of the standard library."""
    room, _, rest = document.partition("/")
    return room if room == "reference" else rest.split("/")[0]


def _is_held_out(paragraph: str) -> bool:
    digest = hashlib.blake2b(paragraph.encode(), digest_size=8).digest()
    return int.from_bytes(digest) < HELD_OUT_SHARE * 2**64
