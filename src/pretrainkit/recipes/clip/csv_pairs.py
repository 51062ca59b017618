"""Sets as ZeroVL keeps them: SET/train_anno.csv with columns image, image_id, caption and caption_id, images in
SET/train; the same for valid."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from pretrainkit.errors import DataError
from pretrainkit.recipes.clip.config import ClipSourceConfig
from pretrainkit.recipes.clip.pairs import MissingImage, Pairs, Split, chosen_captions, chosen_column, split_names


class FolderPairs(Pairs):
    """Image files in a folder, named relative to it."""

    def __init__(
        self, source: ClipSourceConfig, images: Path, table: pa.Table, skipped: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(source, table, skipped)
        self.images = images

    def read_image(self, row: int) -> bytes:
        return read_file(self.images / self.image_names[row].as_py())

    def lacks_image(self, row: int) -> bool:
        try:
            return not (self.images / self.image_names[row].as_py()).is_file()
        except OSError:  # what cannot be the name of a file
            return True

    def image_bytes(self, row: int) -> int:
        path = self.images / self.image_names[row].as_py()
        try:
            return path.stat().st_size
        except OSError as error:
            raise MissingImage(f"{path}: {error.strerror}") from error


def read_file(path: Path) -> bytes:
    """Raises MissingImage where no file of that name can be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError) as error:
        raise MissingImage(f"{path}: there is no such file") from error
    except OSError as error:  # no permission, a name that is too long, a failing disk
        raise MissingImage(f"{path}: {error.strerror}") from error


def open_csv(source: ClipSourceConfig, split: Split) -> FolderPairs:
    """One split of a folder. The ids are needed for evaluation only; in training whole numbers tell equal images.

    Raises:
        DataError: There is no annotation file, it cannot be read, or columns or ids are missing.
    """
    folder, names = Path(source.path), split_names(source, split)
    name = next((name for name in names if (folder / f"{name}_anno.csv").is_file()), None)
    if name is None:
        raise DataError(
            f"data.{split}: there is no {folder / f'{names[0]}_anno.csv'}\n"
            "  a set has it beside the folder of images; for another split of the set, give split: NAME"
        )
    path = folder / f"{name}_anno.csv"
    table = _read(path)
    where = str(path)
    present = table.column_names
    image = chosen_column(present, source.image_key, ("image", "filepath", "file_name"), "image", where)
    texts = chosen_captions(present, source, ("caption", "text", "title"), where)
    columns = {"image": table.column(image).combine_chunks()}
    columns |= {f"caption_{number}": table.column(text).combine_chunks() for number, text in enumerate(texts)}
    for column in ("image_id", "caption_id"):
        if (ids := _ids(table, column, path, is_needed=split == "valid")) is not None:
            columns[column] = ids
    return FolderPairs(source, folder / name, pa.table(columns))


def _read(path: Path) -> pa.Table:
    try:
        options = csv.ParseOptions(newlines_in_values=True)
        with csv.open_csv(path, parse_options=options) as reader:
            names = reader.schema.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise pa.ArrowInvalid(f"it has several columns {', '.join(twice)}")
        as_text = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.large_string()), strings_can_be_null=False)
        return csv.read_csv(path, parse_options=options, convert_options=as_text)
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
        raise DataError(
            f"{path} cannot be read as a table: {str(error)[:300]}\n"
            "  it must be UTF-8, separated by commas, with a line of column names; quote captions that hold commas"
        ) from error


def _ids(table: pa.Table, column: str, path: Path, *, is_needed: bool) -> pa.Array | None:
    """int64 (N,), or None where they are not needed and not there."""
    if column not in table.column_names:
        if not is_needed:
            return None
        raise DataError(
            f"{path} has no column {column}; it has {', '.join(table.column_names)}\n"
            "  evaluation needs image, image_id, caption and caption_id: rows of one image share its image_id"
        )
    try:
        return pc.cast(table.column(column).combine_chunks(), pa.int64())
    except pa.ArrowInvalid as error:
        if not is_needed:
            return None
        raise DataError(
            f"{path}: column {column} must hold whole numbers: {error}\n  evaluation tells images and captions by them"
        ) from error
