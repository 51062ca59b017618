"""Arrays of zarr, format 2: `.zarray` says what it is, files such as `0.0` hold its chunks.

The files lie in a folder, or are entries of any other store of bytes by name. Source:
https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html; bfloat16 is TensorStore's addition.
"""

import gzip
import itertools
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.formats.tf_types import BFLOAT16, from_bfloat16

METADATA = ".zarray"
Read = Callable[[str], bytes | None]
"""The content of a file by name; None: there is none."""


def folder_store(folder: Path) -> Read:
    """The files of a folder."""

    def read(name: str) -> bytes | None:
        path = folder / name
        return path.read_bytes() if path.is_file() else None

    return read


def read_zarr(read: Read) -> NDArray[Any]:
    """The whole array; bfloat16 as float32.

    Raises:
        ValueError: It is no array of format 2, is packed in a way that is not read, or a chunk is torn.
    """
    raw = read(METADATA)
    if raw is None:
        raise ValueError(f"it has no {METADATA}")
    meta = json.loads(raw)
    if meta.get("zarr_format") != 2 or meta.get("filters"):
        raise ValueError(
            f"it has zarr_format {meta.get('zarr_format')} and filters {meta.get('filters')}, not 2 and none"
        )
    dtype = "<u2" if meta["dtype"] == BFLOAT16 else meta["dtype"]
    shape, chunks = tuple(meta["shape"]), tuple(meta["chunks"])
    whole = np.zeros(shape, dtype)
    if meta.get("fill_value") is not None and dtype == meta["dtype"]:
        whole.fill(float(meta["fill_value"]) if np.dtype(dtype).kind == "f" else meta["fill_value"])
    separator = meta.get("dimension_separator", ".")
    for place in itertools.product(*(range(-(-size // chunk)) for size, chunk in zip(shape, chunks, strict=True))):
        content = read(separator.join(map(str, place)) if place else "0")
        if content is None:
            continue  # every element is the fill value
        values = np.frombuffer(_unpacked(content, meta.get("compressor")), dtype).reshape(chunks, order=meta["order"])
        own = tuple(
            slice(chunk * at, min(chunk * (at + 1), size)) for at, chunk, size in zip(place, chunks, shape, strict=True)
        )
        whole[own] = values[tuple(slice(part.stop - part.start) for part in own)]
    if meta["dtype"] == BFLOAT16:
        return from_bfloat16(whole)
    return whole


def _unpacked(content: bytes, compressor: dict[str, Any] | None) -> bytes:
    kind = compressor["id"] if compressor else None
    try:
        if kind is None:
            return content
        if kind == "gzip":
            return gzip.decompress(content)
        if kind == "zlib":
            return zlib.decompress(content)
        if kind == "zstd":
            import zstandard

            return zstandard.ZstdDecompressor().decompressobj().decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"a chunk cannot be decompressed: {error}") from error
    raise ValueError(f"its chunks are compressed by {kind!r}; gzip, zlib, zstd and none are read")
