"""Writes token shards (the format is in `shards.py`): batch by batch, each shard whole or absent, the manifest last."""

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
    """The four files of one shard, named when the block ends well and removed when it does not."""

    def __init__(self, folder: Path, shard: int, num_shards: int, vocab_size: int) -> None:
        self._paths = {part: folder / part_name(part, shard, num_shards) for part in PARTS}
        self._dtypes = {part: np.dtype(dtype or token_dtype(vocab_size)) for part, dtype in PARTS.items()}
        self._files: dict[str, HashingFile] = {}
        self._counts = dict.fromkeys(PARTS, 0)
        self._stack = ExitStack()
        self.entry: dict[str, Any] = {}
        """What the manifest says about the shard; complete after the block."""

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
        """Appends whole documents. Raises ValueError where the lengths do not add up.

        Args:
            tokens: (T,) ids of all their sentences.
            sentence_lengths: (S,) tokens per sentence, each at least 1.
            document_lengths: (D,) sentences per document, each at least 1.
            hashes: (D,) of the documents' texts.
            may_be_empty: Documents may have no sentences, as examples of a task without a feature.
        """
        if sentence_lengths.sum() != len(tokens) or document_lengths.sum() != len(sentence_lengths):
            raise ValueError("lengths of sentences or documents do not add up to what they are lengths of")
        has_empty = 0 in sentence_lengths or (0 in document_lengths and not may_be_empty)
        if len(hashes) != len(document_lengths) or has_empty:
            raise ValueError("every document needs a hash, at least one sentence, and no empty sentence")
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
    """Writes the manifest, which makes the folder complete, and returns it.

    Args:
        entries: `ShardWriter.entry` of every shard, in order.
        tokenizer: Its fingerprint.
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
    """Writes shards from ids that are at hand, for tests and for corpora that come tokenised; no tokenizer is copied.

    For every shard its documents are given; a document is a sequence of sentences, a sentence of ids. Empty sentences
    and documents are left out. `vocab_size` decides the dtype.
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
