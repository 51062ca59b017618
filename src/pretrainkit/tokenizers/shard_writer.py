"""Write token shards (see `shards.py`) batch by batch. Each shard is complete or absent; the manifest is last."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pretrainkit.files.manifest import HashingFile, atomic_file, write_manifest
from pretrainkit.tokenizers.shards import FORMAT, PARTS, part_name, token_dtype
from pretrainkit.tokenizers.special import SpecialIds


class ShardWriter:
    """Context manager that writes the four files of one shard. They get their names if the block ends without an
    error, else they are removed."""

    def __init__(self, folder: Path, shard: int, num_shards: int, vocab_size: int) -> None:
        self._paths = {part: folder / part_name(part, shard, num_shards) for part in PARTS}
        self._dtypes = {part: np.dtype(dtype or token_dtype(vocab_size)) for part, dtype in PARTS.items()}
        self._files: dict[str, HashingFile] = {}
        self._counts = dict.fromkeys(PARTS, 0)
        self._stack = ExitStack()
        self.entry: dict[str, Any] = {}
        """Entry of the shard in the manifest; complete after the block."""

    def __enter__(self) -> "ShardWriter":
        for part, path in self._paths.items():
            self._files[part] = HashingFile(self._stack.enter_context(atomic_file(path)))
        return self

    def add(
        self,
        tokens: NDArray[np.integer],
        sentence_lengths: NDArray[np.integer],
        document_lengths: NDArray[np.integer],
        hashes: NDArray[np.uint64],
        *,
        may_be_empty: bool = False,
    ) -> None:
        """Append complete documents. Raises ValueError if the lengths do not add up.

        Args:
            tokens: (T,) ids of all their sentences.
            sentence_lengths: (S,) tokens per sentence, each at least 1.
            document_lengths: (D,) sentences per document, each at least 1.
            hashes: (D,) `text_hash` of each document.
            may_be_empty: Documents may have no sentences, like a task's examples that lack a feature.
        """
        if sentence_lengths.sum() != len(tokens) or document_lengths.sum() != len(sentence_lengths):
            raise ValueError("sentence_lengths must add up to the tokens, document_lengths to the sentences")
        has_empty = 0 in sentence_lengths or (0 in document_lengths and not may_be_empty)
        if len(hashes) != len(document_lengths) or has_empty:
            raise ValueError("every document needs a hash and at least one sentence, and no sentence may be empty")
        sentence_ends = self._counts["tokens"] + np.cumsum(sentence_lengths, dtype=np.int64)
        document_ends = self._counts["sentences"] + np.cumsum(document_lengths, dtype=np.int64)
        content = {"tokens": tokens, "sentences": sentence_ends, "documents": document_ends, "hashes": hashes}
        for part, values in content.items():
            self._files[part].write(np.ascontiguousarray(values, self._dtypes[part]).tobytes())
            self._counts[part] += len(values)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
        self.entry = {f"num_{part}": self._counts[part] for part in ("tokens", "sentences", "documents")}
        self.entry["sha256"] = {part: file.sha256 for part, file in self._files.items()}


def finish_shards(
    folder: Path,
    entries: Sequence[Mapping[str, Any]],
    *,
    vocab_size: int,
    special: SpecialIds,
    tokenizer: str = "",
    corpus: str = "",
    **more: Any,
) -> dict[str, Any]:
    """Write the manifest, which makes the folder complete, and return it.

    Args:
        entries: `ShardWriter.entry` of every shard, in order.
        tokenizer: Fingerprint of the tokenizer.
        corpus: Fingerprint of the documents.
        **more: Further keys, such as `splitter` and `skipped`.
    """
    made_by = {"fingerprint": tokenizer, "vocab_size": vocab_size, "special": special.as_dict()}
    content = {"tokenizer": made_by, "sha256": [entry["sha256"] for entry in entries]}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "dtype": token_dtype(vocab_size).str,
        "shards": [dict(entry) for entry in entries],
        **{
            f"num_{part}": sum(entry[f"num_{part}"] for entry in entries)
            for part in ("tokens", "sentences", "documents")
        },
        "tokenizer": made_by,
        "corpus": corpus,
        "fingerprint": hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest(),
        **more,
    }
    write_manifest(folder, manifest)
    return manifest


def write_shards(
    folder: str | os.PathLike[str],
    shards: Iterable[Iterable[Sequence[ArrayLike]]],
    *,
    vocab_size: int,
    special: SpecialIds,
) -> dict[str, Any]:
    """Write shards from given ids, for tests and for corpora that are already tokenized. No tokenizer is copied.

    A shard is a sequence of documents, a document is a sequence of sentences, and a sentence is a sequence of ids.
    Empty sentences and documents are dropped. `vocab_size` decides the dtype.
    """
    root, entries = Path(folder), []
    contents = [list(shard) for shard in shards]
    for shard, documents in enumerate(contents):
        with ShardWriter(root, shard, len(contents), vocab_size) as writer:
            for document in documents:
                sentences = [ids for ids in (np.asarray(sentence, np.int64) for sentence in document) if len(ids)]
                if sentences:
                    tokens = np.concatenate(sentences)
                    digest = hashlib.blake2b(tokens.tobytes(), digest_size=8).digest()
                    lengths = np.array([len(ids) for ids in sentences])
                    writer.add(tokens, lengths, np.array([len(lengths)]), np.frombuffer(digest, "<u8"))
        entries.append(writer.entry)
    return finish_shards(root, entries, vocab_size=vocab_size, special=special)
