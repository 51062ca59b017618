"""One shard: documents to sentences to ids to files; by one process, or with batches of documents sent to several."""

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
_split_lines = PlainSplitter("newline")

Text = tuple[str, bool]
"""A document's text, and whether its lines are its sentences."""


class Batch(NamedTuple):
    """Encoded documents, as `ShardWriter.add` takes them, and what was dropped."""

    tokens: NDArray[np.integer]
    sentence_lengths: NDArray[np.int64]
    document_lengths: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    num_empty_sentences: int
    num_empty_documents: int
    num_with_control: int
    """Documents in which a control piece is spelled out."""


@dataclass(frozen=True, kw_only=True)
class EncodeSettings:
    splitter: SplitterName = "punkt"
    """How documents are cut into sentences."""
    punkt_rules: PunktRules = "default"
    """For punkt: what becomes of ellipses, closing quotes and the like; see punkt.py."""
    pattern: str | None = None
    """For regex: what lies between two sentences."""
    language: str = "auto"
    """Whose common abbreviations punkt knows beforehand, where boundaries are learned: auto (of the text's language,
    where it is known), none, or a code of abbreviations.py."""
    control_pieces: ControlPieces = "text"
    """What those become that are spelled out in a document, such as `<mask>`: ordinary text, or their ids, as in
    AutoTokenizer."""
    text_key: str = "text"
    """Key or column that holds the text."""
    max_bad: int = 0
    """Pieces of bad input that may be skipped."""

    def __post_init__(self) -> None:
        check_splitter(self.splitter, self.punkt_rules, self.pattern)
        check_language(self.language)
        if self.language != "auto" and self.splitter != "punkt":
            raise DataError(
                f"splitter {self.splitter!r} knows no abbreviations but was given language {self.language!r}\n"
                "  leave it out, or take punkt"
            )


@dataclass(frozen=True)
class Encoder:
    """What a worker needs to encode; built where it is used."""

    tokenizer: str
    """Its folder."""
    settings: EncodeSettings
    punkt: Path | None
    """File of the parameters."""
    fingerprint: str
    """Of the content of all, so that files which have changed since are read again."""


@lru_cache(maxsize=2)
def _parts(encoder: Encoder) -> tuple[Tokenizer, Splitter, Callable[[str], object]]:
    """The tokenizer, the splitter and what finds control pieces in a text, made once per process."""
    settings = encoder.settings
    splitter = load_splitter(settings.splitter, encoder.punkt, rules=settings.punkt_rules, pattern=settings.pattern)
    tokenizer = load_tokenizer(encoder.tokenizer, settings.control_pieces)
    return tokenizer, splitter, finder_of_control_pieces(tokenizer)


def finder_of_control_pieces(tokenizer: Tokenizer) -> Callable[[str], object]:
    """A function that gives the first control piece spelled out in a text, or None. Most texts lack their signs."""
    names = [name for name, is_special in zip(tokenizer.pieces(), tokenizer.is_special) if is_special and name]
    signs = {name[0] for name in names}
    search = re.compile("|".join(map(re.escape, sorted(names, reverse=True))) or r"(?!)").search
    return lambda text: search(text) if any(sign in text for sign in signs) else None


@dataclass(frozen=True)
class ShardTask:
    folder: Path
    index: int
    num_shards: int
    sources: tuple[SourceFile, ...]
    encoder: Encoder
    vocab_size: int
    work: Path
    """Folder to note in that it is done."""
    key: str
    """Fingerprint of everything that decides the shard."""

    @property
    def num_bytes(self) -> int:
        return sum(source.num_bytes for source in self.sources)


def encode_batch(encoder: Encoder, texts: list[Text]) -> Batch:
    tokenizer, split, find_control = _parts(encoder)
    sentences: list[str] = []
    num_sentences = np.empty(len(texts), np.int64)
    with without_collector():  # it would search the many new lists: a tenth of the time
        for index, (text, has_lines) in enumerate(texts):
            found = _split_lines(text) if has_lines else split(text)
            num_sentences[index] = len(found)
            sentences += found
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
    )


def encode_shard(task: ShardTask) -> tuple[ShardTask, dict[str, Any]]:
    """Makes the shard and its record, which it returns behind the task: `entry` for the manifest and `skips`."""
    skips = Skips(task.encoder.settings.max_bad)
    return task, write_shard(task, skips, (encode_batch(task.encoder, texts) for texts in batches(task, skips)))


def write_shard(task: ShardTask, skips: Skips, encoded: Iterable[Batch]) -> dict[str, Any]:
    """Writes batches to the shard's files and then its record, which it returns."""
    empty: Counter[str] = Counter()
    num_with_control = 0
    with ShardWriter(task.folder, task.index, task.num_shards, task.vocab_size) as writer:
        for batch in encoded:
            if len(batch.tokens):
                writer.add(batch.tokens, batch.sentence_lengths, batch.document_lengths, batch.hashes)
            empty["empty_sentence"] += batch.num_empty_sentences
            empty["empty_document"] += batch.num_empty_documents
            num_with_control += batch.num_with_control
    record = {
        "key": task.key,
        "entry": {**writer.entry, "sources": [source.address for source in task.sources]},
        "skips": skips.as_dict(),
        "empty": {reason: count for reason, count in empty.items() if count},
        "with_control": num_with_control,
    }
    return record_finished(task.work, record)


def finished_record(task: ShardTask) -> dict[str, Any] | None:
    """The record of an earlier run for the same shard, if that is whole."""
    record = finished_task(task.work, task.key)
    sizes = part_sizes(record["entry"], token_dtype(task.vocab_size)) if record else {}
    paths = {part: task.folder / part_name(part, task.index, task.num_shards) for part in sizes}
    is_whole = all(paths[part].is_file() and paths[part].stat().st_size == size for part, size in sizes.items())
    return record if is_whole else None


def batches(task: ShardTask, skips: Skips) -> Iterator[list[Text]]:
    """The documents of a shard in batches of about `BATCH_CHARACTERS`."""
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
    """Makes shards one after another: this process reads and writes, `processes` others encode."""
    all_skips = [Skips(task.encoder.settings.max_bad) for task in tasks]

    def pieces() -> Iterator[tuple[Encoder, list[Text]]]:
        for task, skips in zip(tasks, all_skips):
            # An empty batch marks the end, so that shards without documents are made too.
            for texts in chain(batches(task, skips), [[]]):
                yield task.encoder, texts

    results = run_tasks(_encode_piece, pieces(), processes, in_order=True)
    for task, skips in zip(tasks, all_skips):
        shard = iter(lambda: next(results), None)
        yield task, write_shard(task, skips, shard)


def _encode_piece(piece: tuple[Encoder, list[Text]]) -> Batch | None:
    encoder, texts = piece
    return encode_batch(encoder, texts) if texts else None
