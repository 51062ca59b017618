"""Batches of images of one domain, for any list of records.

A batch has `image` (see `model.prepared`) and `key`, int64 (B,), from which the random numbers of an image are derived.
With random image sizes it also has `image_size`, an empty array whose number of rows is the size in pixels: a shape is
known on the host, so reading it does not synchronize with the device.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit import rng
from pretrainkit.data.aligned_crops import Part, centre_square, draw_part
from pretrainkit.data.aligned_samples import (
    Samples,
    folders_of,
    map_size,
    open_samples,
    read_array,
    read_map,
    require_numbers,
    standardised,
)
from pretrainkit.data.source import BatchSource, Records
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.images.decode import IMAGE_SUFFIXES, open_image
from pretrainkit.recipes.image_tokenizer.config import ImageTokenizerRun
from pretrainkit.recipes.image_tokenizer.model_config import Domain, ImageTokenizerModelConfig
from pretrainkit.recipes.recipe import Split

_VALID = rng.stream_key(0, "image_tokenizer", "valid")
_PART, _DRAWS = range(2)
"""Random streams of an image's key."""


def suffixes_of(domain: Domain) -> tuple[str, ...]:
    """Return the file extensions of a domain, in lower case."""
    if domain.kind == "features":
        return (".npy",)
    if domain.kind in ("depth", "classes", "mask"):
        return (".png", ".npy")
    return IMAGE_SUFFIXES


def image_size(content: bytes, domain: Domain, name: str) -> tuple[int, int]:
    """Return (height, width) of the image in a file; for features, in grid positions."""
    if domain.kind == "features":
        values = read_array(content, name)
        return (1, 1) if values.ndim == 1 else (values.shape[-2], values.shape[-1])
    if domain.kind in ("depth", "classes", "mask"):
        return map_size(content, name)
    encoded = open_image(content, name=name)
    return encoded.height, encoded.width


def read_image(
    content: bytes, model: ImageTokenizerModelConfig, part: Part, name: str, *, is_exact: bool
) -> NDArray[Any]:
    """Return uint8 (C, H, W) for colours, grey, normals and masks, float32 (C, H, W) for depth and features, int16 (H,
    W) for classes.

    `is_exact`: decode a JPEG at full size and resize it with Pillow, instead of decoding it at a reduced size. Raises
    DataError if the file is broken or does not fit the model."""
    domain, size = model.domain, model.image_size
    if domain.kind == "features":
        return _features(content, model, name)
    if domain.kind == "depth":
        depth_HW = read_map(content, name)
        # The original standardizes shares of 16 bits. The constant that it adds to the variance damps narrow ranges.
        largest = np.iinfo(depth_HW.dtype).max if depth_HW.dtype.kind == "u" else 1
        part_HW = part.nearest(depth_HW.astype(np.float32) / largest, size, size)
        return standardised(part_HW).astype(np.float32)[None]
    if domain.kind == "mask":
        return (part.nearest(read_map(content, name), size, size) > 0).astype(np.uint8)[None]
    if domain.kind == "classes":
        return _classes(part.nearest(read_map(content, name).astype(np.int64), size, size), domain, name)
    image_HWC = part.read(open_image(content, name=name), size, size, is_exact=is_exact)
    if domain.kind == "normals" and part.is_flipped:
        image_HWC = np.concatenate((255 - image_HWC[:, :, :1], image_HWC[:, :, 1:]), axis=2)
    if domain.kind == "grey":
        image_HWC = image_HWC[:, :, :1]
    return np.ascontiguousarray(image_HWC.transpose(2, 0, 1))


def _classes(classes_HW: NDArray[np.int64], domain: Domain, name: str) -> NDArray[np.int16]:
    assert domain.num_classes is not None
    largest = int(np.where(classes_HW == 255, -1, classes_HW).max())
    if largest >= domain.num_classes - 1:
        raise DataError(
            f"{name} has class {largest}, but model.domain has num_classes={domain.num_classes}, one of which means "
            f"no class, so the largest number is {domain.num_classes - 2}\n"
            f"  set model.domain.num_classes={largest + 2} or more"
        )
    return classes_HW.astype(np.int16)


def _features(content: bytes, model: ImageTokenizerModelConfig, name: str) -> NDArray[np.float32]:
    values = read_array(content, name)
    values = values[:, None, None] if values.ndim == 1 else values
    expected_shape = (model.domain.num_channels, model.grid, model.grid)
    if values.shape != expected_shape or values.dtype.kind != "f":
        raise DataError(
            f"{name} has {values.dtype} {values.shape}, but model.domain {model.domain.name} with model.image_size="
            f"{model.image_size} needs floats {expected_shape}\n"
            "  set model.domain.num_channels, and model.image_size to the number of rows times patch_size, or compute "
            "the features again"
        )
    require_numbers(values, name, is_finite=True)
    return values.astype(np.float32)


class ImageSource(BatchSource):
    """Images of all data sets. Random crops are functions of the records' keys; "valid" takes the largest centre
    squares."""

    def __init__(
        self, config: ImageTokenizerRun, split: Split, sets: Sequence[Samples], folders: Sequence[str]
    ) -> None:
        """`folders`: name of the image folder in each data set."""
        self.model, self.data, self.seed = config.model, config.data, config.seed
        self.split, self.sets, self.folders = split, tuple(sets), tuple(folders)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(samples) for samples in self.sets)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the files' names, of a few contents, and of every setting that affects a batch."""
        fields = {"crop", "min_image_size", "image_size_step"}
        parts = [self.split, self.model.domain.model_dump_json(), str(self.model.image_size), *self.folders]
        parts += [self.data.model_dump_json(include=fields), *(samples.fingerprint for samples in self.sets)]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def lengths(self, records: Records) -> NDArray[np.int64]:
        return np.full(len(records), self.model.num_tokens, np.int64)

    def build(self, records: Records) -> dict[str, np.ndarray]:
        keys = records.key if self.split == "train" else records.held_out_keys(_VALID)
        images = [
            self.read(source, index, key)
            for source, index, key in zip(
                records.source.tolist(), records.index.tolist(), rng.fold(keys, _PART).tolist(), strict=True
            )
        ]
        return {"image": np.stack(images), "key": rng.fold(keys, _DRAWS).view(np.int64)}

    def read(self, source: int, index: int, key: int) -> NDArray[Any]:
        """Read, crop and resize an image."""
        samples, folder = self.sets[source], self.folders[source]
        content, name = samples.read(folder, index), samples.name(folder, index)
        size = image_size(content, self.model.domain, name)
        if self.split == "train":
            part = draw_part(self.data.crop, *size, rng.generator(key))
        else:
            part = centre_square(*size)
        return read_image(content, self.model, part, name, is_exact=self.split != "train")

    def of_step(self, step: int) -> dict[str, np.ndarray]:
        """Return the image size of this step, if sizes are random; otherwise an empty dict."""
        smallest = self.data.min_image_size
        if smallest is None or self.split != "train":
            return {}
        sizes = range(smallest, self.model.image_size + 1, self.data.image_size_step)
        drawn = rng.generator(rng.stream_key(self.seed, "image_tokenizer", "size", step)).integers(len(sizes))
        return {"image_size": np.empty((sizes[int(drawn)], 0), np.uint8)}


def open_source(config: ImageTokenizerRun, split: Split) -> ImageSource:
    """Open the images of a split. Raises DataError if no data is given or it is broken."""
    configs = config.data.train if split == "train" else config.data.valid
    if not configs:
        raise DataError(f"data.{split} names no data\n  give it as data.{split}=FOLDER")
    domain = config.model.domain
    folders = [entry.folder or domain.path for entry in configs]
    for entry, folder in zip(configs, folders, strict=True):
        require_folder(entry.path, folder, domain, "model.domain.folder=NAME, or . for files in the folder itself")
    suffixes = suffixes_of(domain)
    sets = [open_samples(entry.path, {folder: suffixes}) for entry, folder in zip(configs, folders, strict=True)]
    return ImageSource(config, split, sets, folders)


def require_folder(path: str, folder: str, domain: Domain, setting: str) -> None:
    """Raise DataError if a data set has no folder of this name. `setting`: the setting that names the folder."""
    existing = folders_of(path)
    if folder != "." and folder not in existing:
        raise DataError(
            f"{path} has no folder {folder}, where images of {domain.name} are expected\n"
            f"  it has the folders {', '.join(sorted(existing)) or '(none)'}; name the folder of the images: {setting}"
        )


def bind(config: ImageTokenizerRun) -> ImageTokenizerRun:
    """Check the config against its data by reading the first image of every data set, and return it. Raises ConfigError
    or DataError if settings and data do not fit each other."""
    if not config.data.train:
        raise DataError("data.train is empty\n  set data.train=FOLDER")
    problems = config.problems()
    if problems:
        raise ConfigError(problems)
    train, valid = ({(entry.path, entry.folder) for entry in sets} for sets in (config.data.train, config.data.valid))
    if shared := train & valid:
        names = ", ".join(sorted(path for path, _ in shared))
        raise DataError(f"data.valid names data that is also in data.train: {names}\n  give other data")
    splits: tuple[Split, ...] = ("train", "valid") if config.data.valid else ("train",)
    for split in splits:
        source = open_source(config, split)
        source.build(Records.of_first_epoch([0] * len(source.sets), np.arange(len(source.sets))))
    return config


def assumed_batch(config: ImageTokenizerRun, num_examples: int) -> dict[str, np.ndarray]:
    """Return a batch of zeros at the largest image size, in the format of `read_image`."""
    model, domain = config.model, config.model.domain
    side = model.grid if domain.kind == "features" else model.image_size
    shape = (side, side) if domain.kind == "classes" else (domain.num_channels, side, side)
    is_float = domain.kind in ("depth", "features")
    dtype = np.int16 if domain.kind == "classes" else np.float32 if is_float else np.uint8
    return {"image": np.zeros((num_examples, *shape), dtype), "key": np.arange(num_examples)}
