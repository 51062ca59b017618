"""Write rendered rows as parquet: the columns of the published data sets, and additional columns on request.

`datasets` reads the files and shows `pixel_values` as pictures. They are PNG, which is written with zlib alone.

Dimensions: H rows, W columns of a picture.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from pretrainkit.files.manifest import atomic_file

if TYPE_CHECKING:
    import pyarrow.parquet

PIXELS, PATCHES = "pixel_values", "num_patches"
Extra = Literal["text", "document", "renderer"]
"""text: the text of the row. document: its origin. renderer: the renderer's fingerprint."""
EXTRAS: tuple[Extra, ...] = get_args(Extra)
ROWS_PER_GROUP = 32
"""Number of rows per row group. Random access to a row reads its whole group."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB = 0, 2
_LEVEL = 5
"""Compression level of zlib. Compared with 6, it takes two thirds of the time, and files are 4 % larger."""


def row_schema(extras: Sequence[Extra], *, with_pixels: bool) -> pyarrow.Schema:
    """Return the schema: columns in their order, with the metadata that `datasets` needs."""
    import pyarrow

    fields: dict[str, Any] = {}
    features: dict[str, Any] = {}
    if with_pixels:
        fields[PIXELS] = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
        features[PIXELS] = {"_type": "Image"}
    fields[PATCHES] = pyarrow.int64()
    features[PATCHES] = {"dtype": "int64", "_type": "Value"}
    for name in extras:
        fields[name] = pyarrow.string()
        features[name] = {"dtype": "string", "_type": "Value"}
    about = json.dumps({"info": {"features": features}})
    return pyarrow.schema(fields, metadata={"huggingface": about})


class RowFile:
    """A parquet file to which rows are added one by one."""

    def __init__(self, path: Path, writer: pyarrow.parquet.ParquetWriter) -> None:
        self.path, self._writer = path, writer
        self._waiting: list[Mapping[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row: values by column name, the picture as PNG bytes."""
        self._waiting.append({**row, PIXELS: {"bytes": row[PIXELS], "path": None}} if PIXELS in row else row)
        if len(self._waiting) == ROWS_PER_GROUP:
            self.write()

    def add_batch(self, rows: pyarrow.RecordBatch) -> None:
        """Add rows with the file's schema as a row group of their own."""
        self.write()
        self._writer.write_batch(rows)

    def write(self) -> None:
        import pyarrow

        if self._waiting:
            self._writer.write_table(pyarrow.Table.from_pylist(self._waiting, schema=self._writer.schema))
            self._waiting = []


@contextmanager
def new_row_file(path: Path, schema: pyarrow.Schema) -> Iterator[RowFile]:
    """Open a new file for writing. It appears under its name only when it is complete."""
    import pyarrow.parquet

    # PNG is compressed already, and pictures do not repeat.
    codecs = {name: "zstd" for name in schema.names if name != PIXELS}
    if PIXELS in schema.names:
        codecs |= {f"{PIXELS}.bytes": "none", f"{PIXELS}.path": "zstd"}
    names = [name for name in schema.names if name in ("document", "renderer")]
    settings: dict[str, Any] = {"compression": codecs, "use_dictionary": names, "write_statistics": False}
    with atomic_file(path) as file, pyarrow.parquet.ParquetWriter(file, schema, **settings) as writer:
        rows = RowFile(path, writer)
        yield rows
        rows.write()


def to_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode uint8 (H, W), 8-bit grey, or (H, W, 3) as PNG. Rows have no filter: files are small enough, and choosing
    filters would double the time."""
    height, width = pixels.shape[:2]
    lines = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each line begins with its filter type, 0 for none
    lines[:, 1:] = pixels.reshape(height, -1)
    color = _GREY if pixels.ndim == 2 else _RGB
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    content = zlib.compress(lines.tobytes(), _LEVEL)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", content) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
