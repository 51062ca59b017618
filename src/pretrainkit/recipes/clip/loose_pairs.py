"""Pairs in folders without a known format: images with a table of captions, or with one text file for each image."""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pretrainkit.corpus.survey import LeftOut
from pretrainkit.errors import DataError
from pretrainkit.files.sources import delimiter_of, files_below, utf8_text
from pretrainkit.images.decode import IMAGE_SUFFIXES

IMAGE_COLUMNS = ("image", "filepath", "file_name", "filename", "image_path", "image_name", "path")
CAPTION_COLUMNS = ("caption", "text", "title", "captions")
_TABLES = (".csv", ".tsv", ".jsonl", ".txt")
"""Suffixes of tables. In some sets, a table with commas is called captions.txt."""
_COLUMNS = ("image", "image_id", "caption", "caption_id")


@dataclass(frozen=True)
class LoosePairs:
    """Images of a folder with their captions."""

    folder: str
    captions: dict[str, list[str]]
    """Maps the name of each image, relative to the folder, to its captions."""
    left_out: tuple[LeftOut, ...]

    def table(self) -> str:
        """Return the content of train_anno.csv."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        number = 0
        for image_id, (image, captions) in enumerate(self.captions.items()):
            for caption in captions:
                writer.writerow((image, image_id, caption, number))
                number += 1
        return file.getvalue()


def find_loose_pairs(folder: str) -> LoosePairs:
    """Find images and captions below a folder. Raises DataError if there are no images, or none has a caption."""
    files = sorted(path.relative_to(folder).as_posix() for path in files_below(Path(folder)))
    images = [name for name in files if name.lower().endswith(IMAGE_SUFFIXES)]
    others = [name for name in files if not name.lower().endswith((*IMAGE_SUFFIXES, *_TABLES))]
    others = [name for name in others if not Path(name).name.startswith(".")]
    if not images:
        example = f"; it has {others[0]}" if others else ""
        raise DataError(
            f"{folder} has no images ({', '.join(IMAGE_SUFFIXES)}){example}\n"
            "  give a folder with images, or convert them to one of these formats"
        )
    captions: dict[str, list[str]] = {}
    num_unknown, unknown = 0, ""
    broken: list[str] = []
    # A name alone is enough only if no other folder has an image of this name.
    counts = Counter(Path(image).name for image in images)
    by_name = {Path(image).name: image for image in images if counts[Path(image).name] == 1}
    known, other_names = set(images), {Path(name).name for name in others}
    for table in sorted(name for name in files if name.lower().endswith(_TABLES)):
        for name, caption in _rows(folder, table, broken):
            beside = os.path.normpath(os.path.join(os.path.dirname(table), name))
            image = beside if beside in known else by_name.get(Path(name).name)
            if image is None and Path(name).name not in other_names:
                num_unknown, unknown = num_unknown + 1, unknown or name or f"a row of {table} without an image"
            elif image is not None and caption:
                captions.setdefault(image, []).append(caption)
    for image in images:
        text = Path(folder, image).with_suffix(".txt")
        if image not in captions and text.is_file():
            content = text.read_text(encoding="utf-8-sig", errors="surrogateescape")
            if not _is_utf8(content):
                broken.append(text.relative_to(folder).as_posix())
                continue
            lines = content.splitlines()
            if texts := [line.strip() for line in lines if line.strip()]:
                captions[image] = texts
    if not captions:
        raise DataError(
            f"no image of {folder} has a caption (images: {len(images):,})\n"
            "  add a table captions.csv with the columns image and caption, or a text file beside each image, such as "
            f"{Path(images[0]).with_suffix('.txt')}"
        )
    without = [image for image in images if image not in captions]
    left_out = [LeftOut("images without a caption", len(without), tuple(without[:3]))] if without else []
    if num_unknown:
        left_out.append(LeftOut("captions of images that do not exist", num_unknown, (unknown,)))
    if others:
        left_out.append(LeftOut("files that are neither images nor captions", len(others), tuple(others[:3])))
    if broken:
        left_out.append(LeftOut("rows that cannot be read", len(broken), tuple(broken[:3])))
    return LoosePairs(folder, {image: captions[image] for image in images if image in captions}, tuple(left_out))


def _rows(folder: str, table: str, broken: list[str]) -> Iterable[tuple[str, str]]:
    """Yield image ("" if it is missing) and caption of each row with a caption; nothing if the file is not a table with
    these columns. Rows that cannot be read are added to `broken`, as FILE:LINE."""
    with open(os.path.join(folder, table), encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        if table.lower().endswith(".jsonl"):
            rows: Iterable[dict[str, Any]] = _objects(file, table, broken)
        else:
            rows = _table_rows(file, table, broken)
        for row in rows:
            image, caption = _first(row, IMAGE_COLUMNS), _first(row, CAPTION_COLUMNS)
            if caption is None or (image is None and not any(name in row for name in IMAGE_COLUMNS)):
                continue
            for text in caption if isinstance(caption, list) else [caption]:
                yield str(image or "").strip(), str(text).strip()


def _table_rows(file: Iterable[str], table: str, broken: list[str]) -> Iterator[dict[str, Any]]:
    lines = list(file)
    delimiter = "\t" if table.lower().endswith(".tsv") else delimiter_of(lines)
    read = partial(csv.DictReader, delimiter=delimiter, strict=True)
    reader = read(lines)
    try:
        names = reader.fieldnames or ()
    except csv.Error:  # a text with a line that is too long for a header
        return
    if not any(name in CAPTION_COLUMNS for name in names):
        return
    num_before = 0  # lines before those of the reader
    while True:
        begin = num_before + reader.line_num
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:  # such as after a quotation mark that is not closed; the next line may begin a row
            broken.append(f"{table}:{begin + 1}")
            num_before = begin + 1
            reader = read((lines[number] for number in range(num_before, len(lines))), names)
            continue
        if _is_utf8(" ".join(map(str, row.values()))):
            yield row
        else:
            broken.append(f"{table}:{begin + 1}")


def _objects(lines: Iterable[str], table: str, broken: list[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and _is_utf8(line):
            yield value
        elif line.strip():
            broken.append(f"{table}:{number}")


def _is_utf8(text: str) -> bool:
    """Return False for a text that was read with `surrogateescape` from bytes that `utf8_text` refuses."""
    try:
        utf8_text(text.encode(errors="surrogateescape"))
    except ValueError:
        return False
    return True


def _first(row: dict[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)
