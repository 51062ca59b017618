"""Encode one shard: documents to sentences to ids to files, in one process or with batches of documents for several."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretrainkit.corpus.readers import read_documents, text_hash
from pretrainkit.errors import DataError
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import SourceFile
from pretrainkit.files.work import finished_task, record_finished
from pretrainkit.tokenizers.load import ControlPieces, Tokenizer, load_tokenizer
from pretrainkit.tokenizers.punkt import PunktRules
from pretrainkit.tokenizers.sentences import (
    PlainSplitter,
    Splitter,
    SplitterName,
    check_language,
    check_splitter,
    load_splitter,
)
from pretrainkit.tokenizers.shard_writer import ShardWriter
from pretrainkit.tokenizers.shards import part_name, part_sizes, token_dtype
from pretrainkit.workers.processes import run_tasks, without_collector

BATCH_CHARACTERS = 1 << 20
_MANY_INDENTED = 0.3
"""Share of indented lines of source code. Poems and books have fewer."""
_split_lines = PlainSplitter("newline")

Text = tuple[str, bool]
"""The text of a document, and True if its lines are its sentences."""


class Batch(NamedTuple):
    """Encoded documents in the form that `ShardWriter.add` takes, and counts of dropped ones."""

    tokens: NDArray[np.integer]
    sentence_lengths: NDArray[np.int64]
    document_lengths: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    num_empty_sentences: int
    num_empty_documents: int
    num_with_control: int
    """Documents in which a control piece is spelled out."""
    num_unknown: int
    """Tokens for text that the vocabulary cannot represent."""
    num_bytes: int
    """Tokens of one byte each, for characters outside the vocabulary."""
    num_indented: int
    """Documents with many indented lines, such as source code."""


@dataclass(frozen=True, kw_only=True)
class EncodeSettings:
    splitter: SplitterName = "punkt"
    """Method that splits documents into sentences."""
    punkt_rules: PunktRules = "default"
    """For punkt: treatment of ellipses, closing quotes and the like; see punkt.py."""
    pattern: str | None = None
    """For regex: matches between two sentences."""
    language: str = "auto"
    """Language whose common abbreviations punkt knows before it learns boundaries: auto (the text's language, if it is
    known), none, or a code of abbreviations.py."""
    control_pieces: ControlPieces = "text"
    """Reading of control pieces that are spelled out in a document, such as `<mask>`: as ordinary text, or as their
    ids as in AutoTokenizer."""
    text_key: str = "text"
    """Key or column that holds the text."""
    max_bad: int = 0
    """Number of bad records that may be skipped."""

    def __post_init__(self) -> None:
        check_splitter(self.splitter, self.punkt_rules, self.pattern)
        check_language(self.language)
        if self.language != "auto" and self.splitter != "punkt":
            raise DataError(
                f"splitter {self.splitter!r} uses no abbreviations but was given language {self.language!r}\n"
                "  leave it out, or use punkt"
            )


@dataclass(frozen=True)
class Encoder:
    """Description from which each worker builds its tokenizer and splitter."""

    tokenizer: str
    """Folder of the tokenizer."""
    settings: EncodeSettings
    punkt: Path | None
    """File of Punkt's parameters."""
    fingerprint: str
    """Fingerprint of the contents, so that changed files are read again."""


@lru_cache(maxsize=2)
def _parts(encoder: Encoder) -> tuple[Tokenizer, Splitter, Callable[[str], object]]:
    """Return the tokenizer, the splitter and a function that finds control pieces in a text; built once per process."""
    settings = encoder.settings
    splitter = load_splitter(settings.splitter, encoder.punkt, rules=settings.punkt_rules, pattern=settings.pattern)
    tokenizer = load_tokenizer(encoder.tokenizer, settings.control_pieces)
    return tokenizer, splitter, finder_of_control_pieces(tokenizer)


def finder_of_control_pieces(tokenizer: Tokenizer) -> Callable[[str], object]:
    """Return a function that matches the first control piece spelled out in a text, or returns None."""
    names = [name for name, is_special in zip(tokenizer.pieces(), tokenizer.is_special) if is_special and name]
    # Most texts have none of the first characters, which is faster to check than the pattern.
    first_characters = {name[0] for name in names}
    search = re.compile("|".join(map(re.escape, sorted(names, reverse=True))) or r"(?!)").search
    return lambda text: search(text) if any(character in text for character in first_characters) else None


@dataclass(frozen=True)
class ShardTask:
    folder: Path
    index: int
    num_shards: int
    sources: tuple[SourceFile, ...]
    encoder: Encoder
    vocab_size: int
    work: Path
    """Folder for the record of the finished shard."""
    key: str
    """Fingerprint of everything that decides the shard."""

    @property
    def num_bytes(self) -> int:
        return sum(source.num_bytes for source in self.sources)


def encode_batch(encoder: Encoder, texts: list[Text]) -> Batch:
    tokenizer, split, find_control = _parts(encoder)
    sentences: list[str] = []
    num_sentences = np.empty(len(texts), np.int64)
    with without_collector():  # the collector would visit the many new lists, which takes a tenth of the time
        for index, (text, has_lines) in enumerate(texts):
            parts = _split_lines(text) if has_lines else split(text)
            num_sentences[index] = len(parts)
            sentences += parts
        tokens, lengths = tokenizer.encode_flat(sentences)
    # Sentences without ids are dropped; a document is dropped when none of its sentences is left.
    document = np.repeat(np.arange(len(texts)), num_sentences)[lengths > 0]
    document_lengths = np.bincount(document, minlength=len(texts))
    is_kept = document_lengths > 0
    hashes = np.fromiter((text_hash(text) for text, _ in texts), np.uint64, len(texts))
    return Batch(
        tokens=tokens.astype(token_dtype(tokenizer.vocab_size)),
        sentence_lengths=lengths[lengths > 0],
        document_lengths=document_lengths[is_kept],
        hashes=hashes[is_kept],
        num_empty_sentences=int((lengths == 0).sum()),
        num_empty_documents=int((~is_kept).sum()),
        num_with_control=sum(find_control(text) is not None for text, _ in texts),
        num_unknown=int((tokens == tokenizer.special.unk).sum()),
        num_bytes=int(tokenizer.is_byte[tokens].sum()),
        num_indented=sum(_is_indented(text) for text, _ in texts),
    )


def _is_indented(text: str) -> bool:
    num_lines = text.count("\n")
    return num_lines > 1 and text.count("\n ") + text.count("\n\t") >= _MANY_INDENTED * num_lines


def encode_shard(task: ShardTask) -> tuple[ShardTask, dict[str, Any]]:
    """Encode the shard, and return the task and the shard's record: `entry` for the manifest, `skips` and counts."""
    skips = Skips(task.encoder.settings.max_bad)
    return task, write_shard(task, skips, (encode_batch(task.encoder, texts) for texts in batches(task, skips)))


def write_shard(task: ShardTask, skips: Skips, encoded: Iterable[Batch]) -> dict[str, Any]:
    """Write batches to the shard's files, then write and return its record."""
    empty: Counter[str] = Counter()
    num_with_control = num_unknown = num_bytes = num_indented = 0
    with ShardWriter(task.folder, task.index, task.num_shards, task.vocab_size) as writer:
        for batch in encoded:
            if len(batch.tokens):
                writer.add(batch.tokens, batch.sentence_lengths, batch.document_lengths, batch.hashes)
            empty["empty_sentence"] += batch.num_empty_sentences
            empty["empty_document"] += batch.num_empty_documents
            num_with_control += batch.num_with_control
            num_unknown += batch.num_unknown
            num_bytes += batch.num_bytes
            num_indented += batch.num_indented
    record = {
        "key": task.key,
        "entry": {**writer.entry, "sources": [source.address for source in task.sources]},
        "skips": skips.as_dict(),
        "empty": {reason: count for reason, count in empty.items() if count},
        "with_control": num_with_control,
        "unknown": num_unknown,
        "bytes": num_bytes,
        "indented": num_indented,
    }
    return record_finished(task.work, record)


def finished_record(task: ShardTask) -> dict[str, Any] | None:
    """Return the record of an earlier run of the same task if its files are complete, else None."""
    record = finished_task(task.work, task.key)
    sizes = part_sizes(record["entry"], token_dtype(task.vocab_size)) if record else {}
    paths = {part: task.folder / part_name(part, task.index, task.num_shards) for part in sizes}
    is_whole = all(paths[part].is_file() and paths[part].stat().st_size == size for part, size in sizes.items())
    return record if is_whole else None


def batches(task: ShardTask, skips: Skips) -> Iterator[list[Text]]:
    """Yield the documents of a shard in batches of about `BATCH_CHARACTERS`."""
    batch: list[Text] = []
    size = 0
    for document in read_documents(task.sources, skips, text_key=task.encoder.settings.text_key):
        batch.append((document.text, document.has_sentence_lines))
        size += len(document.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def encode_together(tasks: Sequence[ShardTask], processes: int) -> Iterator[tuple[ShardTask, dict[str, Any]]]:
    """Encode shards one after another: this process reads and writes, and `processes` others encode."""
    all_skips = [Skips(task.encoder.settings.max_bad) for task in tasks]

    def pieces() -> Iterator[tuple[Encoder, list[Text]]]:
        for task, skips in zip(tasks, all_skips):
            # An empty batch marks the end of a shard, so that shards without documents are also written.
            for texts in chain(batches(task, skips), [[]]):
                yield task.encoder, texts

    results = run_tasks(_encode_piece, pieces(), processes, in_order=True)
    for task, skips in zip(tasks, all_skips):
        shard = iter(lambda: next(results), None)
        yield task, write_shard(task, skips, shard)


def _encode_piece(piece: tuple[Encoder, list[Text]]) -> Batch | None:
    encoder, texts = piece
    return encode_batch(encoder, texts) if texts else None
