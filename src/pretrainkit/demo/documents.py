"""A demo's text as JSON lines, which `pretrainkit corpus shards` reads."""

import json
from collections.abc import Iterable
from pathlib import Path

from pretrainkit.errors import DataError

MIN_BYTES = 200_000


def write_documents(path: Path, documents: Iterable[tuple[str, str]], what: str) -> None:
    """Write (source, text) pairs as JSON lines and say how much it is.

    Raises:
        DataError: It is less than MIN_BYTES.
    """
    num_documents = num_bytes = 0
    with open(path, "w", encoding="utf-8") as file:
        for name, text in documents:
            file.write(json.dumps({"text": text, "meta": {"source": name}}, ensure_ascii=False) + "\n")
            num_documents += 1
            num_bytes += len(text.encode())
    if num_bytes < MIN_BYTES:
        raise DataError(
            f"{what}: only {num_bytes:,} bytes of text; the demo needs {MIN_BYTES:,} to learn anything from\n"
            "  give more text of your own: pretrainkit demo --text FILE..."
        )
    print(f"  {path}: {num_documents} documents, {num_bytes / 1e6:.1f} MB: {what}")
