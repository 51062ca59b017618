"""Documents to render: files, and Wikipedia text with blank lines between articles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pretrainkit.corpus.readers import decoded_lines, read_documents
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import Format, OnBytes, SourceFile, find_sources, find_splits, plain_chunks, split_lines
from pretrainkit.rendering.packing import wikipedia_articles


class RenderDocument(NamedTuple):
    """A document to render."""

    name: str
    """Origin of the document: file or data set, and its number there."""
    text: str


@dataclass(frozen=True)
class Documents:
    """Documents of files, read as by `pretrainkit corpus`, in a fixed order."""

    sources: tuple[SourceFile, ...]
    text_key: str = "text"

    @property
    def identity(self) -> Any:
        """JSON value that changes when the documents may have changed."""
        return [[source.identity for source in self.sources], self.text_key]

    @property
    def num_bytes(self) -> int:
        return sum(source.num_bytes for source in self.sources)

    def read(self, skips: Skips, on_bytes: OnBytes = None) -> Iterator[RenderDocument]:
        for document in read_documents(self.sources, skips, text_key=self.text_key, on_bytes=on_bytes):
            yield RenderDocument(f"{document.source}#{document.position}", document.text)


@dataclass(frozen=True)
class ArticleDocuments(Documents):
    """Articles in text files with a paragraph per line and three blank lines between articles, as the original reads
    Wikipedia. A title after the blank lines is left out."""

    text_key: str = "articles"

    def read(self, skips: Skips, on_bytes: OnBytes = None) -> Iterator[RenderDocument]:
        for source in self.sources:
            raw = split_lines(plain_chunks(source, on_bytes), source.address)
            lines = (line for _, line in decoded_lines(raw, source.address, skips))
            for number, article in enumerate(wikipedia_articles(lines)):
                yield RenderDocument(f"{source.address}#{number}", "\n".join(article))


def find_documents(
    inputs: Sequence[str | Path], format: Format | str = "auto", text_key: str = "text"
) -> dict[str, Documents]:
    """Find the documents of each split: `train` and `valid` of a corpus folder, otherwise only "train".

    Raises DataError if there are none.

    Args:
        inputs: Files, folders, globs, addresses.
        format: A format of `find_sources`, or "articles".
        text_key: Key or column of the text.
    """
    inputs_by_split = find_splits(inputs) or {"train": inputs}
    if format == "articles":
        return {split: ArticleDocuments(tuple(find_sources(paths, "text"))) for split, paths in inputs_by_split.items()}
    return {
        split: Documents(tuple(find_sources(paths, format)), text_key)  # type: ignore[arg-type]
        for split, paths in inputs_by_split.items()
    }
