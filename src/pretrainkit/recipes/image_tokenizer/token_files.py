"""Tokens beside the images of a data set, for the recipe fourm: one file of them for each image, one row for each part
of it, and the parts in `crop_settings`, the same for all modalities.

    ROOT/crop_settings/ANY/STEM.npy     int32 (parts, 5): top, left, height, width, mirrored
    ROOT/tok_rgb@64/ANY/STEM.npy        int16 (parts, tokens), row by row (int32 for more than 32 768 ids)
    ROOT/tok_rgb@64/manifest.json       which tokenizer, whose tokens are never mixed with another's

Of tar files, one archive of tokens for each of images. What is there already is kept, so the same call goes on where an
interrupted one stopped.

Source: section 6.3 of the specification. Parts there are drawn anew by whoever comes first; here they are a function of
the seed and the image's name.
"""

import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit import rng
from pretrainkit.data.aligned_crops import CropConfig, Part, centre_square, draw_part, stored_part
from pretrainkit.data.aligned_samples import CROP_SETTINGS, Samples, archives_of, is_stream, open_samples, read_array
from pretrainkit.data.tar import is_address
from pretrainkit.errors import DataError, InputError
from pretrainkit.files.manifest import MANIFEST_NAME, atomic_file
from pretrainkit.recipes.image_tokenizer.codec import ImageCodec
from pretrainkit.recipes.image_tokenizer.model_config import ImageTokenizerModelConfig
from pretrainkit.recipes.image_tokenizer.source import image_size, read_image, require_folder, suffixes_of
from pretrainkit.workers.processes import Progress, Quiet

_LARGEST_INT16 = 1 << 15
_THREADS = 4


def write_tokens(
    codec: ImageCodec, path: str, fingerprint: str, settings: Mapping[str, Any], progress: Progress | None = None
) -> dict[str, Any]:
    """Tokenize a data set: a folder with a folder for each modality, or tar files as in `ROOT/[rgb]/{00..09}.tar`.
    Return the manifest, with `written` and `kept`, numbers of files. `fingerprint` is that of the tokenizer's weights;
    `settings` are `capabilities.ImageTokenOptions`. Raises DataError where images are missing or broken, or tokens and
    parts there do not fit, InputError where settings cannot be."""
    work = TokenMaker(codec, **settings)
    if is_stream(path) and is_address(path):
        raise InputError(f"{path} is not on a disk\n  tokens are written beside the images: copy those archives first")
    require_folder(path, work.folder, codec.domain, "--folder NAME")
    write = _of_archives if is_stream(path) else _of_folders
    return write(work, path, work.manifest(fingerprint), progress or Quiet())


_MODALITIES: Mapping[str, str] = {
    "semseg_coco": "semseg",
    "CLIP-B16": "clip",
    "DINOv2-B14": "dinov2",
    "DINOv2-B14-global": "dinov2_global",
    "ImageBind-H14": "imagebind",
    "ImageBind-H14-global": "imagebind_global",
}
"""Published domains whose tokens have another name in the recipe fourm."""


def usual_name(model: ImageTokenizerModelConfig) -> str:
    """Return the folder of a model's tokens, as of the modality that they are in the recipe fourm."""
    name = _MODALITIES.get(model.domain.name, model.domain.name)
    return f"tok_{name}" if model.grid == 1 else f"tok_{name}@{model.image_size}"


class TokenMaker:
    """Images of samples to tokens of their parts."""

    def __init__(
        self,
        codec: ImageCodec,
        *,
        num_parts: int = 1,
        min_scale: float = 0.8,
        seed: int = 0,
        folder: str | None = None,
        out: str | None = None,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        number, num = shard
        if not 0 <= number < num:
            raise InputError(f"--shard {number}/{num} is none\n  parts are numbered from 0: --shard 0/{max(num, 1)}")
        if num_parts < 1 or not 0 < min_scale <= 1:
            raise InputError(
                f"{num_parts} parts of at least {min_scale} of an image cannot be\n"
                "  give at least 1 part, and a share above 0 and at most 1"
            )
        self.has_parts = codec.domain.kind != "features"
        if not self.has_parts and num_parts > 1:
            raise InputError("features were made of one part of each image\n  leave out --crops")
        self.num_parts, self.min_scale, self.seed, self.shard = num_parts, min_scale, seed, shard
        self.codec, self.model = codec, codec.config
        self.folder, self.out = folder or self.model.domain.path, out or usual_name(self.model)
        self.dtype = np.int16 if codec.vocab_size <= _LARGEST_INT16 else np.int32

    def manifest(self, fingerprint: str) -> dict[str, Any]:
        """Return what must be alike among all tokens of a folder."""
        return {
            "tokenizer": fingerprint,
            "domain": self.model.domain.name,
            "image_size": self.model.image_size,
            "vocab_size": self.codec.vocab_size,
            "tokens": self.codec.num_tokens,
            "parts": self.num_parts,
        }

    def parts(self, key: str, size: tuple[int, int], table: NDArray[Any] | None, name: str) -> list[Part]:
        """Return the parts of an image of `size` (height, width). `table`: those that are stored already, in the file
        `name`; None: they are drawn."""
        if table is None:
            crop = CropConfig(scale=(self.min_scale, 1.0))
            drawn_from = rng.generator(rng.stream_key(self.seed, CROP_SETTINGS, key))
            drawn = [draw_part(crop, *size, drawn_from) for _ in range(self.num_parts - 1)]
            return [centre_square(*size), *drawn]
        if len(table) != self.num_parts:
            raise _other_parts(name, len(table), self.num_parts)
        found = [stored_part(table, number, size, name) for number in range(len(table))]
        first, own = found[0], centre_square(*size)
        if (first.top, first.left, first.height, first.width) != (own.top, own.left, own.height, own.width):
            raise DataError(
                f"{name} has parts of an image of another size than {size[0]} x {size[1]}\n"
                "  all modalities of a data set that have tokens need images of one size"
            )
        return found

    def read(
        self, samples: Samples, index: int, table: NDArray[Any] | None, table_name: str
    ) -> tuple[NDArray[Any], list[Part]]:
        """The images of all parts of a sample, and the parts."""
        content, name = samples.read(self.folder, index), samples.name(self.folder, index)
        if self.has_parts:
            size = image_size(content, self.model.domain, name)
            parts = self.parts(samples.keys[index].rpartition("/")[2], size, table, table_name)
        else:
            parts = [centre_square(self.model.image_size, self.model.image_size)]
        return np.stack([read_image(content, self.model, part, name, is_exact=True) for part in parts]), parts

    def tokens(
        self, jobs: Sequence[tuple[Samples, int, NDArray[Any] | None, str]]
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Tokens and the table of parts of each sample, in order; some are read ahead."""
        at_once = max(1, 64 // self.num_parts)
        with ThreadPoolExecutor(_THREADS) as pool:
            groups = [jobs[start : start + at_once] for start in range(0, len(jobs), at_once)]
            ahead = [pool.submit(self.read, *job) for job in groups[0]] if groups else []
            for number in range(len(groups)):
                found = [one.result() for one in ahead]
                # The next group is read while this one is on the device.
                ahead = [pool.submit(self.read, *job) for group in groups[number + 1 : number + 2] for job in group]
                ids = self.codec.encode(np.concatenate([images for images, _ in found])).astype(self.dtype)
                for place, (_, parts) in enumerate(found):
                    rows = [(part.top, part.left, part.height, part.width, int(part.is_flipped)) for part in parts]
                    yield ids[place * len(parts) : (place + 1) * len(parts)], np.array(rows, np.int32)


def _of_folders(work: TokenMaker, path: str, manifest: dict[str, Any], progress: Progress) -> dict[str, Any]:
    root = Path(path)
    kept = root / work.out / MANIFEST_NAME
    _require_alike(kept, manifest)
    samples = open_samples(path, {work.folder: suffixes_of(work.model.domain)})
    number, num = work.shard
    mine = range(number, len(samples), num)
    jobs = []
    for index in mine:
        own, table = (root / folder / f"{samples.keys[index]}.npy" for folder in (work.out, CROP_SETTINGS))
        if not own.is_file():
            stored = read_array(table.read_bytes(), str(table)) if table.is_file() else None
            jobs.append((samples, index, stored, str(table)))
    progress.stage(f"tokenizing {path} into {work.out}", len(jobs), "image")
    for (_, index, stored, table_name), (ids, parts) in zip(jobs, work.tokens(jobs), strict=True):
        _keep_manifest(kept, manifest)
        if work.has_parts and stored is None:
            _save(Path(table_name), parts)
        _save(root / work.out / f"{samples.keys[index]}.npy", ids)
        progress.advance(1)
    return manifest | {"folder": str(root / work.out), "written": len(jobs), "kept": len(mine) - len(jobs)}


def _of_archives(work: TokenMaker, path: str, manifest: dict[str, Any], progress: Progress) -> dict[str, Any]:
    images, out = archives_of(path, work.folder), archives_of(path, work.out)
    tables = archives_of(path, CROP_SETTINGS)
    kept = Path(out[0]).parent / MANIFEST_NAME
    _require_alike(kept, manifest)
    number, num = work.shard
    mine = range(number, len(images), num)
    wanted = [place for place in mine if not Path(out[place]).is_file()]
    progress.stage(f"tokenizing {path} into {work.out}", len(wanted), "archive")
    for place in wanted:
        samples = open_samples(images[place], {work.folder: suffixes_of(work.model.domain)})
        stored = _stored_tables(tables[place], len(samples))
        jobs = [(samples, index, table, tables[place]) for index, table in enumerate(stored)]
        found = list(work.tokens(jobs))
        keys = [key.partition("/")[2] for key in samples.keys]
        _keep_manifest(kept, manifest)
        if work.has_parts and jobs and jobs[0][2] is None:
            _save_archive(Path(tables[place]), keys, [parts for _, parts in found])
        _save_archive(Path(out[place]), keys, [ids for ids, _ in found])
        progress.advance(1)
    return manifest | {"folder": str(kept.parent), "written": len(wanted), "kept": len(mine) - len(wanted)}


def _stored_tables(path: str, num: int) -> list[NDArray[Any] | None]:
    if not Path(path).is_file():
        return [None] * num
    stored = open_samples(path, {CROP_SETTINGS: (".npy",)})
    if len(stored) != num:
        raise DataError(f"{path} has {len(stored)} samples, the images beside it {num}\n  remove it, or make it whole")
    return [read_array(stored.read(CROP_SETTINGS, row), stored.name(CROP_SETTINGS, row)) for row in range(num)]


def _keep_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest once, with the first tokens."""
    if not path.is_file():
        with atomic_file(path) as file:
            file.write(json.dumps(manifest, indent=2, sort_keys=True).encode() + b"\n")


def _require_alike(path: Path, manifest: dict[str, Any]) -> None:
    """Refuse to add to a folder of tokens that were made in another way."""
    if not path.is_file():
        return
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}\n  remove its folder and make the tokens anew") from error
    differing = [name for name in manifest if found.get(name) != manifest[name]]
    if differing == ["parts"]:
        raise _other_parts(str(path.parent), found["parts"], manifest["parts"])
    if differing:
        raise DataError(
            f"{path.parent} has tokens that were made otherwise: "
            + ", ".join(f"{name} {found.get(name)}, now {manifest[name]}" for name in differing)
            + "\n  give another folder with --out, or remove this one"
        )


def _other_parts(name: str, num_there: int, num_asked: int) -> DataError:
    return DataError(
        f"{name} has {num_there} parts of each image, but {num_asked} are asked for\n"
        f"  give --crops {num_there}: parts are the same for all modalities of a data set"
    )


def _save(path: Path, values: NDArray[Any]) -> None:
    with atomic_file(path) as file:
        np.save(file, values)


def _save_archive(path: Path, keys: Sequence[str], arrays: Sequence[NDArray[Any]]) -> None:
    with atomic_file(path) as file, tarfile.open(fileobj=file, mode="w") as archive:
        for key, values in zip(keys, arrays, strict=True):
            content = io.BytesIO()
            np.save(content, values)
            member = tarfile.TarInfo(f"{key}.npy")
            member.size = content.tell()
            content.seek(0)
            archive.addfile(member, content)
