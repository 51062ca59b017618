"""Write tokens beside the images of a data set, for the recipe fourm: one file per image with one row per crop. The
crops are stored in `crop_settings` and are the same for all modalities.

    ROOT/crop_settings/ANY/STEM.npy     int32 (crops, 5): top, left, height, width, mirrored
    ROOT/tok_rgb@64/ANY/STEM.npy        int16 (crops, tokens), row-major (int32 for more than 32,768 ids)
    ROOT/tok_rgb@64/manifest.json       identifies the tokenizer; tokens of two tokenizers are never mixed

For tar files, there is one archive of tokens per archive of images. Existing files are kept, so the same call continues
an interrupted one.

Source: the released code of `apple/ml-4m`. There, the first process draws the crops at random; here they are a function
of the seed and the image's name.
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
from pretrainkit.files.manifest import MANIFEST_NAME, atomic_file, read_object, write_text
from pretrainkit.recipes.image_tokenizer.codec import ImageCodec
from pretrainkit.recipes.image_tokenizer.model_config import ImageTokenizerModelConfig
from pretrainkit.recipes.image_tokenizer.source import image_size, read_image, require_folder, suffixes_of
from pretrainkit.workers.processes import Progress, Quiet

_LARGEST_INT16 = 1 << 15
_THREADS = 4


def write_tokens(
    codec: ImageCodec, path: str, fingerprint: str, settings: Mapping[str, Any], progress: Progress | None = None
) -> dict[str, Any]:
    """Tokenize a data set: a folder with one subfolder per modality, or tar files such as `ROOT/[rgb]/{00..09}.tar`.

    Args:
        fingerprint: Fingerprint of the tokenizer's weights.
        settings: `capabilities.ImageTokenOptions`.

    Returns:
        The manifest, with the numbers of files `written` and `kept`.

    Raises:
        DataError: Images are missing or broken, or existing tokens or crops do not fit.
        InputError: A setting is invalid.
    """
    maker = TokenMaker(codec, **settings)
    if is_stream(path) and is_address(path):
        raise InputError(f"{path} is not on a local disk\n  tokens are written beside the images: copy them first")
    require_folder(path, maker.folder, codec.domain, "--folder NAME")
    write = _tokenize_archives if is_stream(path) else _tokenize_folders
    return write(maker, path, maker.manifest(fingerprint), progress or Quiet())


_MODALITIES: Mapping[str, str] = {
    "semseg_coco": "semseg",
    "CLIP-B16": "clip",
    "DINOv2-B14": "dinov2",
    "DINOv2-B14-global": "dinov2_global",
    "ImageBind-H14": "imagebind",
    "ImageBind-H14-global": "imagebind_global",
}
"""Published domains whose tokens have a different name in the recipe fourm."""


def usual_name(model: ImageTokenizerModelConfig) -> str:
    """Return the default folder of a model's tokens: the name of their modality in the recipe fourm."""
    name = _MODALITIES.get(model.domain.name, model.domain.name)
    return f"tok_{name}" if model.grid == 1 else f"tok_{name}@{model.image_size}"


class TokenMaker:
    """Makes tokens of the crops of images."""

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
            raise InputError(f"invalid --shard {number}/{num}\n  numbers start at 0: --shard 0/{max(num, 1)}")
        if num_parts < 1 or not 0 < min_scale <= 1:
            raise InputError(
                f"invalid crops: {num_parts} of each image, with at least {min_scale} of its area\n"
                "  give at least 1 crop, and a share above 0 and at most 1"
            )
        self.has_parts = codec.domain.kind != "features"
        if not self.has_parts and num_parts > 1:
            raise InputError("feature files cover one crop of each image\n  leave out --crops")
        self.num_parts, self.min_scale, self.seed, self.shard = num_parts, min_scale, seed, shard
        self.codec, self.model = codec, codec.config
        self.folder, self.out = folder or self.model.domain.path, out or usual_name(self.model)
        self.dtype = np.int16 if codec.vocab_size <= _LARGEST_INT16 else np.int32

    def manifest(self, fingerprint: str) -> dict[str, Any]:
        """Return the properties that all tokens of a folder must share."""
        return {
            "tokenizer": fingerprint,
            "domain": self.model.domain.name,
            "image_size": self.model.image_size,
            "vocab_size": self.codec.vocab_size,
            "tokens": self.codec.num_tokens,
            "parts": self.num_parts,
        }

    def parts(self, key: str, size: tuple[int, int], table: NDArray[Any] | None, name: str) -> list[Part]:
        """Return the crops of an image of `size` (height, width). `table`: stored crops, from the file `name`; None:
        draw them."""
        if table is None:
            crop = CropConfig(scale=(self.min_scale, 1.0))
            generator = rng.generator(rng.stream_key(self.seed, CROP_SETTINGS, key))
            drawn = [draw_part(crop, *size, generator) for _ in range(self.num_parts - 1)]
            return [centre_square(*size), *drawn]
        if len(table) != self.num_parts:
            raise _other_parts(name, len(table), self.num_parts)
        parts = [stored_part(table, number, size, name) for number in range(len(table))]
        first, centre = parts[0], centre_square(*size)
        if (first.top, first.left, first.height, first.width) != (centre.top, centre.left, centre.height, centre.width):
            raise DataError(
                f"{name} has crops for a size other than this image's {size[0]} x {size[1]}\n"
                "  give images of the same size for all modalities that are tokenized"
            )
        return parts

    def read(
        self, samples: Samples, index: int, table: NDArray[Any] | None, table_name: str
    ) -> tuple[NDArray[Any], list[Part]]:
        """Return the images of all crops of a sample, and the crops."""
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
        """Yield tokens and the table of crops of each sample, in order. Threads read the next samples in advance."""
        group_size = max(1, 64 // self.num_parts)
        with ThreadPoolExecutor(_THREADS) as pool:
            groups = [jobs[start : start + group_size] for start in range(0, len(jobs), group_size)]
            futures = [pool.submit(self.read, *job) for job in groups[0]] if groups else []
            for number in range(len(groups)):
                images_and_parts = [future.result() for future in futures]
                # The next group is read while the device encodes this one.
                futures = [pool.submit(self.read, *job) for group in groups[number + 1 : number + 2] for job in group]
                ids = self.codec.encode(np.concatenate([images for images, _ in images_and_parts])).astype(self.dtype)
                for row, (_, parts) in enumerate(images_and_parts):
                    rows = [(part.top, part.left, part.height, part.width, int(part.is_flipped)) for part in parts]
                    yield ids[row * len(parts) : (row + 1) * len(parts)], np.array(rows, np.int32)


def _tokenize_folders(maker: TokenMaker, path: str, manifest: dict[str, Any], progress: Progress) -> dict[str, Any]:
    root = Path(path)
    manifest_path = root / maker.out / MANIFEST_NAME
    _require_same_manifest(manifest_path, manifest)
    samples = open_samples(path, {maker.folder: suffixes_of(maker.model.domain)})
    number, num = maker.shard
    indices_of_shard = range(number, len(samples), num)
    jobs = []
    for index in indices_of_shard:
        path_of_tokens, table = (root / folder / f"{samples.keys[index]}.npy" for folder in (maker.out, CROP_SETTINGS))
        if not path_of_tokens.is_file():
            stored = read_array(table.read_bytes(), str(table)) if table.is_file() else None
            jobs.append((samples, index, stored, str(table)))
    progress.stage(f"tokenizing {path} into {maker.out}", len(jobs), "image")
    for (_, index, stored, table_name), (ids, parts) in zip(jobs, maker.tokens(jobs), strict=True):
        _keep_manifest(manifest_path, manifest)
        if maker.has_parts and stored is None:
            _save(Path(table_name), parts)
        _save(root / maker.out / f"{samples.keys[index]}.npy", ids)
        progress.advance(1)
    return manifest | {"folder": str(root / maker.out), "written": len(jobs), "kept": len(indices_of_shard) - len(jobs)}


def _tokenize_archives(maker: TokenMaker, path: str, manifest: dict[str, Any], progress: Progress) -> dict[str, Any]:
    images, out = archives_of(path, maker.folder), archives_of(path, maker.out)
    tables = archives_of(path, CROP_SETTINGS)
    manifest_path = Path(out[0]).parent / MANIFEST_NAME
    _require_same_manifest(manifest_path, manifest)
    number, num = maker.shard
    numbers_of_shard = range(number, len(images), num)
    missing = [
        number_of_archive for number_of_archive in numbers_of_shard if not Path(out[number_of_archive]).is_file()
    ]
    progress.stage(f"tokenizing {path} into {maker.out}", len(missing), "archive")
    for number_of_archive in missing:
        samples = open_samples(images[number_of_archive], {maker.folder: suffixes_of(maker.model.domain)})
        stored = _stored_tables(tables[number_of_archive], len(samples))
        jobs = [(samples, index, table, tables[number_of_archive]) for index, table in enumerate(stored)]
        tokens = list(maker.tokens(jobs))
        keys = [key.partition("/")[2] for key in samples.keys]
        _keep_manifest(manifest_path, manifest)
        if maker.has_parts and jobs and jobs[0][2] is None:
            _save_archive(Path(tables[number_of_archive]), keys, [parts for _, parts in tokens])
        _save_archive(Path(out[number_of_archive]), keys, [ids for ids, _ in tokens])
        progress.advance(1)
    return manifest | {
        "folder": str(manifest_path.parent),
        "written": len(missing),
        "kept": len(numbers_of_shard) - len(missing),
    }


def _stored_tables(path: str, num: int) -> list[NDArray[Any] | None]:
    if not Path(path).is_file():
        return [None] * num
    stored = open_samples(path, {CROP_SETTINGS: (".npy",)})
    if len(stored) != num:
        raise DataError(f"{path} has crops for {len(stored)} images instead of {num}\n  remove it, or complete it")
    return [read_array(stored.read(CROP_SETTINGS, row), stored.name(CROP_SETTINGS, row)) for row in range(num)]


def _keep_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest once, with the first tokens."""
    if not path.is_file():
        write_text(path, json.dumps(manifest, indent=2, sort_keys=True) + "\n")


def _require_same_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Raise DataError if the folder has tokens that were created with another manifest."""
    if not path.is_file():
        return
    stored = read_object(path, "remove its folder and create the tokens again")
    differing = [name for name in manifest if stored.get(name) != manifest[name]]
    if differing == ["parts"]:
        raise _other_parts(str(path.parent), stored["parts"], manifest["parts"])
    if differing:
        raise DataError(
            f"{path.parent} has tokens that were created with other settings: "
            + ", ".join(f"{name} {stored.get(name)}, now {manifest[name]}" for name in differing)
            + "\n  give another folder with --out, or remove this folder"
        )


def _other_parts(name: str, num_stored: int, num_requested: int) -> DataError:
    return DataError(
        f"{name} has {num_stored} crops of each image, but --crops is {num_requested}\n"
        f"  give --crops {num_stored}: all modalities of a data set have the same crops"
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
