"""Shards of a corpus: one JSON object per line, keys `text` and `meta`, plain or Zstandard."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pretrainkit.files.manifest import HashingFile, atomic_file

Compression = Literal["none", "zst"]
_encode_text = json.encoder.encode_basestring  # escapes only ", \ and U+0000 to U+001F; in C where Python has it
_PIECE_BYTES = 1 << 20
ZST_LEVEL = 3
"""The zstd command's own default."""


def encode_record(text: str, meta: dict[str, Any]) -> bytes:
    """One line of a shard, compact, with its line feed. Bytes are equal to what Sabertooth writes. Raises
    UnicodeEncodeError where there is a lone surrogate."""
    encoded = json.dumps(meta, ensure_ascii=False, separators=(",", ":")) if meta else "{}"
    return f'{{"text":{_encode_text(text)},"meta":{encoded}}}\n'.encode()


def shard_name(index: int, num_shards: int, compress: Compression) -> str:
    """`part-00003-of-00500.jsonl`, with `.zst` behind it where compressed."""
    return f"part-{index:05d}-of-{num_shards:05d}.jsonl{'.zst' if compress == 'zst' else ''}"


class ShardWriter:
    """Encoded records into one shard. Made by `open_shard`."""

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
        """Adds one line. What a view shows must stay unchanged until `settle`."""
        self._pieces.append(record)
        self._piece_bytes += len(record)
        self.num_documents += 1
        # Cut by content alone, so that compressed bytes do not depend on how the records came here.
        if self._piece_bytes >= _PIECE_BYTES:
            self.flush()

    def settle(self) -> None:
        """Copies what is still waiting, so that the buffers behind views can go."""
        self._pieces = [b"".join(self._pieces)]

    def flush(self) -> None:
        """Hands what was gathered to the file or the compressor."""
        data = b"".join(self._pieces)
        self._pieces, self._piece_bytes = [], 0
        self._file.write(self._compressor.compress(data) if self._compressor else data)

    def finish(self) -> None:
        """The last bytes of the shard."""
        self.flush()
        if self._compressor:
            self._file.write(self._compressor.flush())


@contextmanager
def open_shard(path: Path, compress: Compression) -> Iterator[tuple[ShardWriter, dict[str, Any]]]:
    """A writer for the shard at `path`, which appears only when the block ends well, and the entry for the manifest,
    which is filled in then.
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
