"""Sets of Hugging Face `datasets`: a folder of `save_to_disk`, a folder of parquet files, or hf://datasets/NAME. Images
are decoded only when they are used."""

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pretrainkit.errors import DataError, MissingSplitError, import_optional
from pretrainkit.files.hub_rows import hub_rows
from pretrainkit.files.sources import check_shards, explained_table_errors, hub_set
from pretrainkit.recipes.clip.config import ClipSourceConfig
from pretrainkit.recipes.clip.folder_pairs import read_file
from pretrainkit.recipes.clip.pairs import (
    BadImage,
    Pairs,
    Split,
    chosen_captions,
    chosen_column,
    split_names,
    texts_of,
    whole_numbers,
)

HUB = "hf://datasets/"
"""Prefix of the name of a data set on the hub."""
_IMAGES = ("image", "img", "jpg", "png", "webp", "picture")
_CAPTIONS = ("caption", "captions", "text", "txt", "sentences")


class HuggingFacePairs(Pairs):
    """Rows of a `datasets.Dataset`, memory-mapped."""

    has_names = False

    def __init__(self, source: ClipSourceConfig, table: pa.Table, images: Any, rows: NDArray[np.int64]) -> None:
        """Create the pairs.

        images: The data set with only its column of images, not decoded.
        rows: (N,) the row of the data set for each pair.
        """
        super().__init__(source, table)
        self._images, self._rows = images, rows

    def read_image(self, row: int) -> bytes:
        return read_encoded(self._images, int(self._rows[row]))

    def _image_numbers(self) -> NDArray[np.int64]:
        return self._rows


def open_huggingface(source: ClipSourceConfig, split: Split) -> HuggingFacePairs:
    """Open a split of a data set. Raises MissingPackageError if `datasets` is not installed, DataError if the data set,
    the split or a column does not exist."""
    dataset = open_rows(source.path, split_names(source, split), f"data.{split}")
    present = dataset.column_names
    where = f"{source.path} ({dataset.split or 'one split'})"
    images = encoded_images(dataset, source.image_key, where, f"data.{split}")
    texts = chosen_captions(present, source, _CAPTIONS, where)
    numbers = [name for name in ("image_id", "caption_id") if name in present]
    with explained_table_errors(where, "an Arrow"):
        plain = dataset.select_columns([*texts, *numbers]).with_format("arrow")[:]
        plain.validate(full=True)  # a text may not be UTF-8
        columns = {f"caption_{n}": plain.column(text).combine_chunks() for n, text in enumerate(texts)}
        ids = {name: plain.column(name).combine_chunks() for name in numbers}
    columns, rows = _one_row_per_caption(columns, ids, where)
    columns["image"] = pa.array([f"row {row}" for row in rows.tolist()], pa.string())
    return HuggingFacePairs(source, pa.table(columns), images, rows)


def open_rows(path: str, names: Sequence[str], field: str) -> Any:
    """Return the first of the splits `names` that a data set has, as a `datasets.Dataset`; if it is not divided into
    splits, all of it. `path` is hf://datasets/NAME, a folder that `datasets` saved, or a folder of parquet files.
    Raises DataError, whose message names `field` of the config, if there is no such data set or split;
    MissingPackageError if `datasets` is not installed."""
    datasets = import_optional("datasets", "hub", f"reading {path}")
    if (on_hub := hub_set(path)) is not None:
        return hub_rows(on_hub, names)
    is_saved = any(Path(path, name).is_file() for name in ("dataset_dict.json", "state.json"))
    for file in Path(path).rglob("*.arrow") if is_saved else ():
        _check_arrow(file)
    try:
        if is_saved:
            dataset = datasets.load_from_disk(path)
        else:
            check_shards(sorted(map(str, Path(path).rglob("*.parquet"))))
            builder = datasets.load_dataset_builder(path)
            _check_places(path, builder.config.data_files)
            builder.download_and_prepare()
            dataset = builder.as_dataset()
    except Exception as error:  # the library raises many kinds of errors, also of other libraries
        raise DataError(
            f"{field}: the data set {path} cannot be opened: {type(error).__name__}: {str(error)[:300]}\n"
            "  give a folder saved by datasets, a folder of parquet files, or hf://datasets/NAME"
        ) from error
    if not isinstance(dataset, dict):
        return dataset
    name = next((name for name in names if name in dataset), None)
    if name is None:
        raise MissingSplitError(
            f"{field}: {path} has no split {' or '.join(names)}; it has {', '.join(dataset)}\n"
            "  choose one: write split: NAME next to its path"
        )
    return dataset[name]


def _check_places(path: str, files: Mapping[str, Sequence[str]] | None) -> None:
    """Raise ValueError for files of a set that are elsewhere, to which its README.md may lead."""
    own = (os.path.abspath(path), os.path.realpath(path))  # the library follows a link to the folder
    for name in chain.from_iterable((files or {}).values()):
        if not any(Path(os.path.abspath(name)).is_relative_to(folder) for folder in own):
            raise ValueError(f"it names the file {name}, which is outside of its folder; it may be an attack")


def _check_arrow(path: Path) -> None:
    """Raise DataError for a damaged Arrow file: `datasets` would follow invalid offsets of values, and crash."""
    if path.name.startswith("cache-"):  # left beside a set by `map`
        return
    with explained_table_errors(path, "an Arrow"), pa.memory_map(str(path)) as file:
        pa.ipc.open_stream(file).read_all().validate(full=True)


def encoded_images(dataset: Any, wanted: str | None, where: str, field: str) -> Any:
    """Return a data set with only the column of images, not decoded. Raises DataError if there is none."""
    datasets = import_optional("datasets", "hub", f"reading {where}")
    image = chosen_column(dataset.column_names, wanted, _IMAGES, "image", where, field)
    if isinstance(dataset.features[image], datasets.Image):
        dataset = dataset.cast_column(image, datasets.Image(decode=False))
    elif not _may_be_images(dataset.features[image], datasets):
        raise DataError(
            f"{where}: column {image!r} holds {dataset.features[image]}, not images\n"
            "  images are files (an Image, bytes, {bytes, path}) or paths of files: name another column with "
            "image_key, or cast this column"
        )
    return dataset.select_columns([image])


def read_encoded(images: Any, row: int) -> bytes:
    """Return the file in a row of `encoded_images`. Raises BadImage if there is none."""
    (image,) = images[row].values()
    if isinstance(image, dict):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, str):
        return read_file(image)
    if not image:
        raise BadImage("missing image", "the row has neither bytes nor a path")
    return image


def _may_be_images(feature: Any, datasets: Any) -> bool:
    """True if values of a column are bytes, paths, or structs of these."""
    if isinstance(feature, dict):
        return bool({"bytes", "path"} & feature.keys())
    return isinstance(feature, datasets.Value) and feature.dtype in ("string", "large_string", "binary", "large_binary")


def _one_row_per_caption(
    captions: dict[str, pa.Array], ids: dict[str, pa.Array], where: str
) -> tuple[dict[str, pa.Array], NDArray[np.int64]]:
    """Return columns with a row for each caption of a list, and the row of the data set that each came from."""
    first = next(iter(captions.values()))
    is_list = [_is_list(column) for column in captions.values()]
    rows = np.arange(len(first), dtype=np.int64)
    if any(is_list) and len(captions) > 1:
        raise DataError(
            f"{where} has lists of captions in one of several caption columns\n"
            "  give a single caption_key: then each caption of the list becomes a pair"
        )
    if is_list[0]:
        # A missing list may still have values in the file, which list_flatten leaves out.
        rows = np.repeat(rows, whole_numbers(pa.compute.list_value_length(first).fill_null(0)))
        captions = {"caption_0": pa.compute.list_flatten(first)}
    columns = {name: texts_of(column, name, where) for name, column in captions.items()}
    for name, column in ids.items():
        if _is_list(column):
            column = pa.compute.list_flatten(column) if is_list[0] else pa.nulls(0)
        elif is_list[0]:
            column = column.take(pa.array(rows))
        if pa.types.is_integer(column.type) and not column.null_count and len(column) == len(rows):
            columns[name] = column.cast(pa.int64(), safe=False)  # ids of 64 bits without a sign wrap around
    return columns, rows


def _is_list(column: pa.Array) -> bool:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(column.type) for is_kind in kinds)
