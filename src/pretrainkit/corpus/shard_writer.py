"""Write shards of a corpus: one JSON object per line with the keys `text` and `meta`, plain or Zstandard."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pretrainkit.files.manifest import HashingFile, atomic_file

Compression = Literal["none", "zst"]
_encode_text = json.encoder.encode_basestring  # escapes only ", \ and U+0000 to U+001F; implemented in C if available
_PIECE_BYTES = 1 << 20
ZST_LEVEL = 3
"""Default level of the zstd command."""


def encode_record(text: str, meta: dict[str, Any]) -> bytes:
    """Return one line of a shard, compact, with its line feed. The bytes equal those that Sabertooth writes. Raises
    UnicodeEncodeError if there is a lone surrogate."""
    encoded = json.dumps(meta, ensure_ascii=False, separators=(",", ":")) if meta else "{}"
    return f'{{"text":{_encode_text(text)},"meta":{encoded}}}\n'.encode()


def shard_name(index: int, num_shards: int, compress: Compression) -> str:
    """Return a name such as `part-00003-of-00500.jsonl`, with the suffix `.zst` if compressed."""
    return f"part-{index:05d}-of-{num_shards:05d}.jsonl{'.zst' if compress == 'zst' else ''}"


class ShardWriter:
    """Writes encoded records to one shard. Created by `open_shard`."""

    def __init__(self, file: HashingFile, compress: Compression) -> None:
        self._file = file
        self._pieces: list[bytes | memoryview] = []
        self._piece_bytes = 0
        self._compressor: Any = None
        if compress == "zst":
            import zstandard

            self._compressor = zstandard.ZstdCompressor(level=ZST_LEVEL, write_checksum=True).compressobj()
        self.num_documents = 0

    def write(self, record: bytes | memoryview) -> None:
        """Add one line. The buffer of a view must stay unchanged until `settle`."""
        self._pieces.append(record)
        self._piece_bytes += len(record)
        self.num_documents += 1
        # The cuts depend only on the content, so that compressed bytes do not depend on the number of calls.
        if self._piece_bytes >= _PIECE_BYTES:
            self.flush()

    def settle(self) -> None:
        """Copy the waiting records, so that the buffers of their views can be freed."""
        self._pieces = [b"".join(self._pieces)]

    def flush(self) -> None:
        """Write the waiting records to the file or the compressor."""
        data = b"".join(self._pieces)
        self._pieces, self._piece_bytes = [], 0
        self._file.write(self._compressor.compress(data) if self._compressor else data)

    def finish(self) -> None:
        """Write the last bytes of the shard."""
        self.flush()
        if self._compressor:
            self._file.write(self._compressor.flush())


@contextmanager
def open_shard(path: Path, compress: Compression) -> Iterator[tuple[ShardWriter, dict[str, Any]]]:
    """Yield a writer for the shard at `path`, and its entry for the manifest. The file appears, and the entry is filled
    in, when the block ends without an error.
    """
    entry: dict[str, Any] = {}
    with atomic_file(path) as file:
        hashing = HashingFile(file)
        writer = ShardWriter(hashing, compress)
        yield writer, entry
        writer.finish()
    entry.update(
        name=path.name,
        num_documents=writer.num_documents,
        num_bytes=hashing.num_bytes,
        sha256=hashing.sha256,
    )
