"""Opens a set of pairs in whatever format it has."""

from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Literal

from pretrainkit.data.tar import is_address
from pretrainkit.errors import DataError
from pretrainkit.recipes.clip.config import ClipSourceConfig
from pretrainkit.recipes.clip.folder_pairs import open_csv, open_img2dataset
from pretrainkit.recipes.clip.huggingface_pairs import HUB, open_huggingface
from pretrainkit.recipes.clip.pairs import SPLIT_NAMES, Pairs, Split, split_names
from pretrainkit.recipes.clip.tar_pairs import open_tars

Format = Literal["csv", "webdataset", "img2dataset", "huggingface"]
_OPENERS: Mapping[Format, Callable[[ClipSourceConfig, Split], Pairs]] = {
    "csv": open_csv,
    "webdataset": open_tars,
    "img2dataset": open_img2dataset,
    "huggingface": open_huggingface,
}


def open_pairs(source: ClipSourceConfig, split: Split) -> Pairs:
    """Open one split of a set in whatever format it has. Raises DataError where it does not exist, or its files are not
    of the format; MissingPackageError where `datasets` is needed and not installed."""
    kind = detect_format(source, split) if source.format == "auto" else source.format
    if is_address(source.path) and kind == "img2dataset":
        kind = "webdataset"  # its archives are; tables and statistics beside them are not read
    if is_address(source.path) and kind == "csv":
        raise DataError(
            f"data.{split}: {source.path}: sets of format csv are read from a disk only\n"
            "  copy the folder, or pack it there and upload the archives: pretrainkit data pack SET --out FOLDER"
        )
    return _OPENERS[kind](source, split)


def detect_format(source: ClipSourceConfig, split: Split) -> Format:
    """Tell the format by the files in the folder. Raises DataError where nothing is there, or no known format."""
    path = Path(source.path)
    if source.path.startswith(HUB) and ".tar" not in source.path:
        return "huggingface"
    if is_address(source.path):
        return "webdataset"
    if not path.is_dir():
        if ".tar" in path.name or path.name.endswith("}"):
            return "webdataset"
        raise DataError(
            f"data.{split}: there is no folder {source.path}\n"
            "  check the spelling; a data set of the Hugging Face hub is hf://datasets/NAME"
        )
    names = split_names(source, split)
    folders = [path, *(path / name for name in names)]
    if any((path / f"{name}_anno.csv").is_file() for name in (*chain(*SPLIT_NAMES.values()), *names)):
        return "csv"
    if any((folder / name).is_file() for folder in folders for name in ("dataset_dict.json", "dataset_info.json")):
        return "huggingface"
    for folder in folders:
        if any(folder.glob("*_stats.json")):
            return "img2dataset"
        if any(folder.glob("*.tar")):
            return "webdataset"
    for folder in [*folders, path / "data"]:
        if tables := list(folder.glob("*.parquet")):
            is_sharded = any(file.with_suffix("").is_dir() or file.with_suffix(".tar").is_file() for file in tables)
            return "img2dataset" if is_sharded else "huggingface"
    raise DataError(
        f"data.{split}: {source.path} is no set of image-text pairs\n"
        f"  expected there: {names[0]}_anno.csv with a folder of images beside it, *.tar "
        "(webdataset), *_stats.json (img2dataset), or *.parquet or a saved data set (Hugging Face)"
    )
