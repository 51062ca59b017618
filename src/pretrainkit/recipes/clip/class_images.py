"""Images with classes, for zero-shot classification: in a folder per class, or in a Hugging Face data set."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.files.sources import hub_set
from pretrainkit.images.class_folders import class_folders
from pretrainkit.recipes.clip.config import ClassificationConfig
from pretrainkit.recipes.clip.folder_pairs import read_file
from pretrainkit.recipes.clip.huggingface_pairs import encoded_images, open_rows, read_encoded
from pretrainkit.recipes.clip.pairs import SPLIT_NAMES, chosen_column, whole_numbers

_LABELS = ("label", "labels", "fine_label", "cls", "class", "wnid")
_WORDNET = re.compile(r"n\d{8}")
_FIELD = "evaluate.classification"


@dataclass(frozen=True)
class ClassImages:
    """N images with a class."""

    classes: tuple[str, ...]
    """Names of the classes: those of the folders, or those that the data set lists."""
    labels_N: NDArray[np.int64]
    """Index into `classes` of each image."""
    read: Callable[[int], bytes]
    """Function that returns the file of an image. Raises BadImage if there is none."""
    describe: Callable[[int], str]
    """Function that returns the name of an image for messages."""
    has_numbers: bool = False
    """True if `classes` is the list of a data set, in which the numbers of classes have a meaning and some classes may
    have no images."""

    @property
    def imagenet_classes(self) -> tuple[str, ...]:
        """WordNet ids or numbers of the classes. Data sets on the hub have ImageNet's classes in the usual order, but
        spell their names differently."""
        if not self.has_numbers or all(map(_WORDNET.fullmatch, self.classes)):
            return self.classes
        return tuple(map(str, range(len(self.classes))))


def open_class_images(wanted: ClassificationConfig) -> ClassImages:
    """Open the images of a set. Raises DataError if images or classes are missing, MissingPackageError if `datasets` is
    needed but not installed."""
    path = Path(wanted.path)
    is_saved = any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))
    if hub_set(wanted.path) is not None or is_saved:
        return _labelled_rows(wanted)
    if "://" in wanted.path:
        raise DataError(
            f"{_FIELD}: {wanted.path} cannot be read\n  give a folder with files CLASS/IMAGE, or hf://datasets/NAME"
        )
    if given := [name for name in ("split", "image_key", "label_key") if getattr(wanted, name) is not None]:
        raise DataError(
            f"{_FIELD}: {wanted.path} is a folder, and {', '.join(given)} belong to data sets of Hugging Face\n"
            "  leave them out, or give hf://datasets/NAME"
        )
    folders = class_folders(path)
    files = folders.files
    return ClassImages(
        folders.classes, folders.labels_N, lambda row: read_file(files[row]), lambda row: str(files[row])
    )


def _labelled_rows(wanted: ClassificationConfig) -> ClassImages:
    names = SPLIT_NAMES["valid"] if wanted.split is None else (wanted.split,)
    dataset = open_rows(wanted.path, names, _FIELD)
    where = f"{wanted.path} ({dataset.split or 'one split'})"
    images = encoded_images(dataset, wanted.image_key, where, _FIELD)
    label = chosen_column(dataset.column_names, wanted.label_key, _LABELS, "label", where, _FIELD)
    values = dataset.select_columns([label]).with_format("arrow")[:].column(label).combine_chunks()
    classes, labels_N, has_numbers = _classes(values, dataset.features[label], wanted, where, label)
    return ClassImages(
        classes, labels_N, lambda row: read_encoded(images, row), lambda row: f"{where}, row {row}", has_numbers
    )


def _classes(
    values: pa.Array, feature: Any, wanted: ClassificationConfig, where: str, column: str
) -> tuple[tuple[str, ...], NDArray[np.int64], bool]:
    """Return the names of the classes, each row's index among them, and `has_numbers`."""
    is_number = pa.types.is_integer(values.type)
    if not is_number and not pa.types.is_string(values.type) and not pa.types.is_large_string(values.type):
        raise DataError(
            f"{where}: column {column!r} holds {feature}, not a class of each image\n"
            "  classes are numbers or names: name another column with label_key"
        )
    if values.null_count or (is_number and pc.min(values).as_py() < 0):
        raise DataError(f"{where}: rows have no class in column {column!r}\n  name a split with classes: split: NAME")
    known = getattr(feature, "names", None)  # if the feature is a ClassLabel
    if known is not None:
        return tuple(known), whole_numbers(values), True
    distinct = pc.unique(values).sort()
    if is_number and wanted.suite != "imagenet" and wanted.class_names is None:
        raise DataError(
            f"{where}: column {column!r} has numbers, but the data set has no names for them\n"
            '  give the names in a file {"0": "name", ...}: class_names: FILE.json, or name a column with label_key'
        )
    return tuple(map(str, distinct.to_pylist())), whole_numbers(pc.index_in(values, value_set=distinct)), False
