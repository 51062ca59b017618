"""Rendered rows as parquet: the columns of the published sets, and further ones on request.

`datasets` reads the files, and shows `pixel_values` as pictures: PNG, by zlib alone.

Dimensions: H rows, W columns of a picture.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from pretrainkit.files.manifest import atomic_file

if TYPE_CHECKING:
    import pyarrow

PIXELS, PATCHES = "pixel_values", "num_patches"
Extra = Literal["text", "document", "renderer"]
"""text: what is drawn. document: where it comes from. renderer: its fingerprint."""
EXTRAS: tuple[Extra, ...] = get_args(Extra)
ROWS_PER_GROUP = 32
"""Reading one row at random reads its group."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB = 0, 2
_LEVEL = 5
"""Two thirds of the time of 6 for files that are 4 % larger."""


def row_schema(extras: Sequence[Extra], *, with_pixels: bool) -> pyarrow.Schema:
    """Columns in their order, and what `datasets` wants to know about them."""
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
    """A parquet file that appears when it is whole; rows come one by one."""

    def __init__(self, path: Path, schema: pyarrow.Schema) -> None:
        self.path, self.schema = path, schema
        self.num_rows = 0
        self._waiting: list[Mapping[str, Any]] = []

    def __enter__(self) -> Self:
        import pyarrow.parquet

        self._aside = atomic_file(self.path)
        file = self._aside.__enter__()
        # PNG is packed already, and no two are alike.
        codecs = {name: "zstd" for name in self.schema.names if name != PIXELS}
        if PIXELS in self.schema.names:
            codecs |= {f"{PIXELS}.bytes": "none", f"{PIXELS}.path": "zstd"}
        self._writer = pyarrow.parquet.ParquetWriter(
            file,
            self.schema,
            compression=codecs,
            use_dictionary=[name for name in self.schema.names if name in ("document", "renderer")],
            write_statistics=False,
        )
        return self

    def add(self, row: Mapping[str, Any]) -> None:
        """One row: the values by column, a picture as PNG."""
        self._waiting.append({**row, PIXELS: {"bytes": row[PIXELS], "path": None}} if PIXELS in row else row)
        self.num_rows += 1
        if len(self._waiting) == ROWS_PER_GROUP:
            self._write()

    def add_batch(self, rows: pyarrow.RecordBatch) -> None:
        """Rows in the file's schema, as a group of their own."""
        self._write()
        self.num_rows += len(rows)
        self._writer.write_batch(rows)

    def _write(self) -> None:
        import pyarrow

        if self._waiting:
            self._writer.write_table(pyarrow.Table.from_pylist(self._waiting, schema=self.schema))
            self._waiting = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._write()
            self._writer.close()
        except BaseException as failure:
            self._aside.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self._aside.__exit__(kind, error, trace)


def to_png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG of uint8 (H, W), 8-bit grey, or (H, W, 3). Rows are stored as they are: lines of text are small enough, and
    choosing filters takes as long again as all the rest."""
    height, width = pixels.shape[:2]
    lines = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each line begins with its filter, none
    lines[:, 1:] = pixels.reshape(height, -1)
    color = _GREY if pixels.ndim == 2 else _RGB
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    content = zlib.compress(lines.tobytes(), _LEVEL)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", content) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
