"""Write a set as tars (webdataset), which suit network file systems better than many small files; and write its
captions as documents, to train a tokenizer."""

import hashlib
import io
import json
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from pretrainkit.errors import DataError, InputError
from pretrainkit.files.manifest import HashingFile, atomic_file, fingerprint, made_by, write_manifest
from pretrainkit.files.outputs import new_folder
from pretrainkit.recipes.clip.pairs import BadImage, Pairs, Split
from pretrainkit.recipes.clip.pixels import look_at
from pretrainkit.recipes.clip.tar_pairs import IMAGE_ENDINGS
from pretrainkit.workers.processes import Progress, Quiet

_FORMAT = "pretrainkit image-text pairs 1"


def pack(
    splits: Mapping[Split, Pairs],
    out: Path,
    *,
    shard_bytes: int,
    max_bad: int = 0,
    heldout: float = 0.0,
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Write OUT/SPLIT/00000.tar, ... and OUT/SPLIT/manifest.json, and return the manifests. On errors, nothing is left.

    Each image is a sample, in the order of first rows: NUMBER.jpg (the unchanged file), NUMBER.txt (its first caption,
    for other tools) and NUMBER.json (all captions with their ids, the image's id and name).

    Args:
        shard_bytes: A shard ends with the sample that reaches this size.
        max_bad: Skip at most this many missing or broken images, rows without a caption and truncated archives.
        heldout: Write this share of the images, at least one, to "valid": those whose files have the lowest hashes, so
            that copies of an image are never in both splits.

    Raises:
        DataError: There is more bad data than `max_bad`.
        InputError: `out` exists or cannot be written, or `heldout` is impossible.
    """
    manifests: dict[str, dict[str, Any]] = {}
    progress = progress or Quiet()
    parts: dict[Split, tuple[Pairs, frozenset[int] | None]] = {name: (pairs, None) for name, pairs in splits.items()}
    if heldout:
        pairs = _only_train(splits, heldout)
        held_out, others = _by_hash(pairs, heldout, progress)
        parts = {"train": (pairs, others), "valid": (pairs, held_out)}
    with new_folder(out) as aside:
        for name, (pairs, images) in parts.items():
            folder = aside / name
            folder.mkdir()
            left_out = _LeftOut(pairs, max_bad)
            shards = _write_shards(_samples(pairs, left_out, progress, images), folder, shard_bytes)
            manifests[name] = {
                "format": _FORMAT,
                "made_by": made_by(),
                "set": pairs.name,
                "source": pairs.fingerprint,
                **{key: sum(shard[key] for shard in shards) for key in ("num_pairs", "num_images", "num_bytes")},
                "left_out": dict(left_out.counts),
                "shards": shards,
                "fingerprint": fingerprint([shard["sha256"] for shard in shards]),
            }
            write_manifest(folder, manifests[name])
    return manifests


def _only_train(splits: Mapping[Split, Pairs], heldout: float) -> Pairs:
    """Return the only split. Raises InputError if there already is held-out data, or the share is impossible."""
    if not 0 < heldout < 1:
        raise InputError(f"--heldout is {heldout:g}\n  give a share between 0 and 1, such as --heldout 0.05")
    if set(splits) != {"train"}:
        raise InputError(
            f"--heldout is {heldout:g}, but the set already has held-out images\n"
            "  leave out --heldout, or use only the training images: --split train"
        )
    return splits["train"]


def _by_hash(pairs: Pairs, heldout: float, progress: Progress) -> tuple[frozenset[int], frozenset[int]]:
    """Return the ids of the held-out images and those of the others. Unreadable images are among the others. Raises
    InputError if there are fewer than two different images."""
    ids, first_rows = np.unique(pairs.image_ids, return_index=True)
    progress.stage(f"choosing held-out images of {pairs.name}", len(ids), "image")
    hashes: dict[int, bytes] = {}
    for image, row in zip(ids.tolist(), first_rows.tolist(), strict=True):
        with suppress(BadImage):
            hashes[image] = hashlib.blake2b(pairs.read_image(row), digest_size=8).digest()
        progress.advance(1)
    different = sorted(set(hashes.values()))
    if len(different) < 2:
        raise InputError(
            f"--heldout is {heldout:g}, but {pairs.name} has no two different images\n  leave out --heldout, or add "
            "images"
        )
    last = different[min(max(1, round(heldout * len(different))), len(different) - 1) - 1]
    held_out = frozenset(image for image, digest in hashes.items() if digest <= last)
    return held_out, frozenset(ids.tolist()) - held_out


def write_captions(sets: Sequence[Pairs], out: Path) -> int:
    """Write the captions of sets as JSON lines {"text", "meta"}, one per pair, and return their number."""
    number = 0
    with atomic_file(out) as file:
        for pairs in sets:
            for text in filter(None, map(pairs.caption, range(len(pairs)))):
                document = {"text": text, "meta": {"dataset": pairs.name}}
                file.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")
                number += 1
    return number


class _LeftOut:
    """Counts skipped data by reason, up to a limit."""

    def __init__(self, pairs: Pairs, max_bad: int) -> None:
        self._pairs, self._max_bad = pairs, max_bad
        self.counts: Counter[str] = Counter()
        if pairs.torn:
            if len(pairs.torn) > max_bad:
                raise DataError(
                    f"set {pairs.name}: {len(pairs.torn)} files cannot be read completely, such as {pairs.torn[0]}\n"
                    "  download or create them again, or skip unreadable data with --max-bad N"
                )
            self.counts["unreadable file"] = len(pairs.torn)

    def add(self, row: int, error: BadImage) -> None:
        """Count a bad row. Raises DataError if there are more than allowed."""
        if self.counts.total() >= self._max_bad:
            raise DataError(
                f"{self._pairs.explain(row, error)}\n"
                "  fix it, or skip such rows with --max-bad N; list all of them with: "
                f"pretrainkit data check {quote(self._pairs.path)}"
            ) from error
        self.counts[error.reason] += 1


def _samples(
    pairs: Pairs, left_out: _LeftOut, progress: Progress, images: frozenset[int] | None
) -> Iterator[tuple[dict[str, bytes], int]]:
    """Yield the files of each image and its captions, by extension, and the number of captions. `images` are the ids
    of the images to use; None: all."""
    rows_of_image: dict[int, list[int]] = {}
    for row, image in enumerate(pairs.image_ids.tolist()):
        if images is not None and image not in images:
            continue
        rows_of_image.setdefault(image, []).append(row)
    progress.stage(f"packing {pairs.name}", len(rows_of_image), "image")
    for image, rows in rows_of_image.items():
        progress.advance(1)
        try:
            content = pairs.read_image(rows[0])
            look_at(content)
        except BadImage as error:
            left_out.add(rows[0], error)
            continue
        captions = {}
        for row in rows:
            if text := pairs.caption(row):
                captions[row] = text
            else:
                left_out.add(row, BadImage("empty caption", "there is no text"))
        if captions:
            name = pairs.image_names[rows[0]].as_py()
            ending = name.rpartition(".")[2].lower()
            ids = pairs.caption_ids[list(captions)].tolist()
            texts = list(captions.values())
            about = {"caption": texts, "caption_id": ids, "image_id": image, "image": name}
            files = {
                ending if ending in IMAGE_ENDINGS else IMAGE_ENDINGS[0]: content,
                "txt": texts[0].encode(),
                "json": json.dumps(about, ensure_ascii=False).encode(),
            }
            yield files, len(ids)


def _write_shards(
    samples: Iterator[tuple[dict[str, bytes], int]], folder: Path, shard_bytes: int
) -> list[dict[str, Any]]:
    """Write the shards, and return the entries of the manifest."""
    shards: list[dict[str, Any]] = []
    number = 0
    sample = next(samples, None)  # read one sample ahead, so that no shard stays empty
    while sample is not None:
        path = folder / f"{len(shards):05d}.tar"
        num_images = num_pairs = num_bytes = 0
        with open(path, "wb") as raw:
            file = HashingFile(raw)
            with tarfile.open(fileobj=file, mode="w|", format=tarfile.USTAR_FORMAT) as archive:  # type: ignore[call-overload]
                while sample is not None and (num_images == 0 or num_bytes < shard_bytes):
                    for ending, content in sample[0].items():
                        entry = tarfile.TarInfo(f"{number:09d}.{ending}")
                        entry.size = len(content)
                        archive.addfile(entry, io.BytesIO(content))
                        num_bytes += len(content)
                    num_images, num_pairs, number = num_images + 1, num_pairs + sample[1], number + 1
                    sample = next(samples, None)
        counts = {"num_images": num_images, "num_pairs": num_pairs, "num_bytes": file.num_bytes}
        shards.append({"name": path.name, **counts, "sha256": file.sha256})
    return shards
