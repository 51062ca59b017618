"""Open sets of pairs in any supported format."""

from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Literal

from pretrainkit.data.tar import is_address
from pretrainkit.errors import DataError, MissingSplitError
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
    """Open a split of a set. Raises DataError if it does not exist or its files do not have its format,
    MissingPackageError if `datasets` is needed but not installed."""
    kind = detect_format(source, split) if source.format == "auto" else source.format
    if is_address(source.path) and kind == "img2dataset":
        kind = "webdataset"  # its archives have this format; tables and statistics beside them are not read
    if is_address(source.path) and kind == "csv":
        raise DataError(
            f"data.{split}: {source.path}: sets of format csv must be on a disk\n"
            "  copy the folder, or pack it where it is and upload the archives: pretrainkit data pack SET --out FOLDER"
        )
    return _OPENERS[kind](source, split)


def detect_format(source: ClipSourceConfig, split: Split) -> Format:
    """Detect the format from the files in the folder. Raises DataError if there are none, or the format is unknown."""
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
    raise MissingSplitError(
        f"data.{split}: {source.path} is not a set of image-text pairs\n"
        f"  it should have {names[0]}_anno.csv with a folder of images beside it, *.tar "
        "(webdataset), *_stats.json (img2dataset), or *.parquet or a saved data set (Hugging Face)"
    )
