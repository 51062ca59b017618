"""Image folders with one subfolder per class: FOLDER/CLASS/IMAGE. This module does not import torch."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.files.sources import files_below
from pretrainkit.images.decode import IMAGE_SUFFIXES

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClassFolders:
    """All images below a folder, by class."""

    classes: tuple[str, ...]
    """Folder names, sorted."""
    files: tuple[Path, ...]
    """Image files of all classes, sorted within each class."""
    labels_N: NDArray[np.int64]
    """Index into `classes` of each file, (N,)."""


def image_files(folder: Path) -> list[Path]:
    """Return all images in the folder and below, sorted by path, without hidden files; of a file, the file itself.
    Raises DataError if the folder does not exist or contains no image."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}\n  give a folder of images")
    images, others = _images_and_others(folder)
    _report(folder, others)
    return images


def class_folders(folder: Path) -> ClassFolders:
    """Return the classes and images of a folder with one subfolder per class. Raises DataError if the folder does not
    exist or has no class folders, or if a class folder contains no image."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}\n  give a folder with one subfolder of images per class")
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise DataError(f"{folder} has no subfolders\n  images are expected at {folder}/CLASS/IMAGE")
    images_by_class, others_by_class = zip(*(_images_and_others(folder / name) for name in classes))
    _report(folder, [*chain.from_iterable(others_by_class)])
    labels = np.repeat(np.arange(len(classes)), [*map(len, images_by_class)])
    return ClassFolders(tuple(classes), tuple(chain.from_iterable(images_by_class)), labels)


def _images_and_others(folder: Path) -> tuple[list[Path], list[Path]]:
    files = [
        path for path in files_below(folder) if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    images = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
    if not images:
        raise DataError(f"{folder} contains no image\n  supported extensions: {', '.join(sorted(IMAGE_SUFFIXES))}")
    return images, [path for path in files if path.suffix.lower() not in IMAGE_SUFFIXES]


def _report(folder: Path, others: Sequence[Path]) -> None:
    if others:
        _log.warning(
            "%s: files without the extension of an image are left out: %d, such as %s",
            *(folder, len(others), others[0].name),
        )


def class_names(classes: Sequence[str], names_file: Path | None) -> list[str]:
    """Return the names of classes for captions: the classes with spaces instead of underscores, or names from a JSON
    file {class: name}. Raises DataError if the file cannot be read or lacks a class."""
    if names_file is None:
        return [name.replace("_", " ") for name in classes]
    try:
        names_by_class = json.loads(names_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f'cannot read class names from {names_file}: {error}\n  give a JSON file {{"class": "name", ...}}'
        ) from None
    if not isinstance(names_by_class, dict) or not all(isinstance(name, str) for name in names_by_class.values()):
        raise DataError(f'{names_file} does not contain class names\n  write {{"class": "name", ...}}')
    if missing := [name for name in classes if name not in names_by_class]:
        raise DataError(f"{names_file} has no name for {', '.join(missing[:5])} ({len(missing)} missing)\n  add them")
    return [names_by_class[name] for name in classes]
