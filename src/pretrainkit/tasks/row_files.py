"""Files of rows of no task, by what their names end in."""

from pathlib import Path

from pretrainkit.errors import DataError
from pretrainkit.tasks.sources import JsonLines, Parquet, TaskSource, TextLines, Tsv

_KINDS = {"jsonl": JsonLines, "ndjson": JsonLines, "json": JsonLines, "txt": TextLines, "tsv": Tsv, "parquet": Parquet}
_PACKED = ("gz", "zst")


def open_rows(path: str | Path, split: str) -> TaskSource:
    """The rows of a file (or of what a glob finds) as the only split of a source.

    Args:
        path: .jsonl (an object per line), .tsv (names of columns first), .parquet, .txt (a line is a row, its key
            `text`); all but parquet also as .gz and .zst.
        split: Its name.

    Raises:
        DataError: The name ends in none of these.
    """
    parts = Path(path).name.lower().split(".")[1:]
    while parts and parts[-1] in _PACKED:
        parts.pop()
    kind = _KINDS.get(parts[-1]) if parts else None
    if kind is None:
        raise DataError(
            f"{path}: a file of rows ends in {', '.join(f'.{name}' for name in _KINDS)}, maybe with .gz or .zst\n"
            "  rename it, or write it in one of these formats"
        )
    return kind({split: path})
