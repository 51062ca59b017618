"""Read documents from files of every format, one at a time. The largest document bounds the memory.

Source of the formats: the data that Sabertooth (https://github.com/nikitakit/sabertooth) reads and writes. It loses
some documents silently; we count them.
"""

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, BinaryIO

from pretrainkit.corpus.books import WHITE_SPACE, BookCleaning, book_text, wiki_articles
from pretrainkit.corpus.wikipedia.documents import dump_documents
from pretrainkit.errors import DataError
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import (
    LARGEST_TEXT,
    Format,
    OnBytes,
    SourceFile,
    explained_table_errors,
    likely_encoding,
    open_source,
    plain_chunks,
    split_lines,
    too_large,
)

SENTENCE_LINES = {"lines": "sentences"}
"""Mark in the `meta` of documents from BERT text, in which each line of the text is one sentence."""
_MAX_VALUE_LINES = 1000
_decoder = json.JSONDecoder()
_NOT_IN_JSON = re.compile("binary|date|time|decimal|duration|interval|half|extension|union")
"""Found in the names of Arrow types whose values JSON lacks (and, without harm, in some names of fields)."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus."""

    text: str
    """Text without lone surrogates, so that it can always be encoded as UTF-8."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Metadata of the document in the corpus; `dataset` and `pile_set_name` are common keys."""
    source: str = ""
    """Address of the file."""
    position: int = 0
    """Number of documents before this one in the file, without skipped ones. In a span of a file, the count starts at
    the span's first byte. Positions are still unique and increasing, because every document takes at least a byte."""

    @property
    def has_sentence_lines(self) -> bool:
        """True if each line of the text is one sentence (BERT text), so that no splitter is needed."""
        return self.meta.get("lines") == "sentences"


def text_hash(text: str) -> int:
    """Return a 64-bit hash of the text alone, equal for all copies. It decides which documents are held out, and finds
    duplicates."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def read_documents(
    sources: Iterable[SourceFile],
    skips: Skips | None = None,
    *,
    text_key: str = "text",
    compat: bool = False,
    on_bytes: OnBytes = None,
) -> Iterator[Document]:
    """Yield all documents of `sources`, in order.

    Args:
        skips: Counts skipped records and has the limit for bad input; None for a limit of zero.
        text_key: Name of the key (JSONL) or column (parquet) with the text.
        compat: Read extracted Wikipedia as Sabertooth does, which finds `<doc` anywhere in a line.

    Raises:
        DataError: A file cannot be opened, is truncated, or has more bad input than allowed.
    """
    skips = Skips() if skips is None else skips
    for source in sources:
        # In a span, positions start at its first byte, which keeps the order of documents over all spans of a file.
        for position, (text, meta) in enumerate(_texts(source, skips, text_key, compat, on_bytes), source.begin or 0):
            if source.dataset is not None and not meta:
                meta = {"dataset": source.dataset}
            yield Document(text, meta, source.address, position)


def _texts(
    source: SourceFile, skips: Skips, text_key: str, compat: bool, on_bytes: OnBytes
) -> Iterator[tuple[str, dict[str, Any]]]:
    if source.format in ("parquet", "arrow"):
        return _columns(source, skips, text_key, on_bytes)
    if source.format == "dump":
        return dump_documents(source, skips, on_bytes)
    chunks = plain_chunks(source, on_bytes)
    match source.format:
        case "jsonl":
            return _jsonl(chunks, source, skips, text_key)
        case "text":
            return _bert_text(chunks, source, skips)
        case "book":
            return _book(chunks, source, skips)
        case "wiki":
            lines = decoded_lines(split_lines(chunks, source.address), source.address, skips)
            return ((text, {}) for text in wiki_articles(lines, source.address, skips, compat))
    raise DataError(
        f"{source.address}: a table ({source.suffix}) is not a file of documents\n"
        "  only `pretrainkit corpus count-words` reads word counts (.tsv); write a column of text as JSON "
        "lines or parquet"
    )


def _jsonl(
    chunks: Iterator[bytes], source: SourceFile, skips: Skips, text_key: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    where = "" if source.begin is None else f" after byte {source.begin}"
    for value, place in json_values(split_lines(chunks, source.address), source.address, skips, where):
        if type(value) is not dict:
            skips.skip("not_an_object", source.address, place, f"a JSON {type(value).__name__}")
            continue
        text = value.get(text_key)
        if type(text) is not str:
            keys = ", ".join(map(repr, list(value)[:8])) or "none"
            skips.skip("no_text", source.address, place, f"key {text_key!r} has no string; the keys are: {keys}")
            continue
        yield text, _meta_of(value.get("meta"))


def _meta_of(meta: Any) -> dict[str, Any]:
    """Return the meta of a record. A value that is not an object is kept under the key `meta`."""
    return meta if type(meta) is dict else {} if meta is None else {"meta": meta}


def json_values(lines: Iterable[bytes], address: str, skips: Skips, where: str = "") -> Iterator[tuple[Any, str]]:
    """Yield JSON values with their places ("line 3", then `where`). A line may have several values, and a value may
    have several lines. A bad line is counted, and reading continues with the next line.
    """
    numbered = enumerate(lines, 1)
    waiting: deque[tuple[int, bytes]] = deque()  # lines that were read ahead but do not belong to the previous value

    def following() -> Iterator[tuple[int, bytes]]:
        while (entry := waiting.popleft() if waiting else next(numbered, None)) is not None:
            yield entry

    for number, line in following():
        place = f"line {number}{where}"
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            skips.bad("invalid_utf8", address, place, utf8_detail(error))
            continue
        if number == 1:
            text = text.removeprefix("\ufeff")
        problem = None
        may_have_surrogates = b"\\ud" in line or b"\\uD" in line
        try:
            values = [_decoder.decode(text)]
        except (ValueError, RecursionError):
            values, problem, unused = _several_values(text, following())
            waiting.extendleft(reversed(unused))
            may_have_surrogates = True  # a value may continue on other lines
        for value in values:
            if may_have_surrogates and _has_lone_surrogate(value):
                skips.bad("invalid_json", address, place, "an escape names half of a surrogate pair")
            else:
                yield value, place
        if problem:
            skips.bad("invalid_json", address, place, problem)


def _several_values(
    text: str, following: Iterator[tuple[int, bytes]]
) -> tuple[list[Any], str | None, list[tuple[int, bytes]]]:
    """Return the values that begin on a line, the problem of its rest, and lines that were read ahead but not used.

    A line that only lacks its end is joined with at most a thousand following lines. If these do not form a value, only
    the first line is bad, and the others are read separately.
    """
    values: list[Any] = []
    unused: list[tuple[int, bytes]] = []
    position, num_seen, problem = 0, 0, None
    while position < len(text):
        if text[position] in " \t\r\n":
            position += 1
            continue
        try:
            value, position = _decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            problem = f"{error.msg} at character {error.pos}: {text[error.pos : error.pos + 40]!r}"
            # The error is at the end of the text, so more lines may complete the value.
            lacks_end = error.pos >= len(text.rstrip())
            entry = next(following, None) if lacks_end and num_seen < _MAX_VALUE_LINES else None
            if entry is None:
                break
            unused.append(entry)
            num_seen += 1
            text += "\n" + entry[1].decode(errors="replace")
        except (ValueError, RecursionError) as error:
            problem = f"{type(error).__name__}: {str(error)[:80]}"
            break
        else:
            values.append(value)
            unused, problem = [], None
    return values, problem, unused


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def utf8_detail(error: UnicodeDecodeError) -> str:
    """Return a message that names the wrong byte of a line and how to fix the file."""
    return (
        f"byte {error.start} of the line is 0x{error.object[error.start]:02x}: {error.reason}; "
        f"convert the file to UTF-8 (for example iconv -f {likely_encoding(error.object)} -t UTF-8)"
    )


def _bert_text(chunks: Iterator[bytes], source: SourceFile, skips: Skips) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the documents between lines of Unicode white space. Lines keep their line feeds and spaces, as in
    Sabertooth. The last line of the file gets a line feed if it has none.
    """
    lines: list[str] = []
    for _, line in chain(decoded_lines(split_lines(chunks, source.address), source.address, skips), [(0, "")]):
        if line.strip(WHITE_SPACE):
            lines.append(line + "\n")
        elif lines:
            yield "".join(lines), dict(SENTENCE_LINES)
            lines = []


def decoded_lines(lines: Iterable[bytes], address: str, skips: Skips, first: int = 1) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, starting at `first`. A line with invalid UTF-8 is counted as bad and skipped."""
    for number, raw in enumerate(lines, first):
        try:
            yield number, raw.decode()
        except UnicodeDecodeError as error:
            skips.bad("invalid_utf8", address, f"line {number}", utf8_detail(error))


def _book(chunks: Iterator[bytes], source: SourceFile, skips: Skips) -> Iterator[tuple[str, dict[str, Any]]]:
    parts, num_bytes = [], 0
    for chunk in chunks:
        parts.append(chunk)
        num_bytes += len(chunk)
        if num_bytes > LARGEST_TEXT:
            raise too_large(source.address, "is a book")
    raw = b"".join(parts)
    try:
        text = raw.decode()
        yield book_text(source.options.clean(text) if isinstance(source.options, BookCleaning) else text), {}
    except UnicodeDecodeError as error:
        number = raw.count(b"\n", 0, error.start) + 1
        line_start = raw.rfind(b"\n", 0, error.start) + 1
        detail = UnicodeDecodeError("utf-8", raw[line_start:], error.start - line_start, error.end, error.reason)
        skips.bad("invalid_utf8", source.address, f"line {number}", utf8_detail(detail))


def _columns(
    source: SourceFile, skips: Skips, text_key: str, on_bytes: OnBytes
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the documents of a parquet file, or of an Arrow file of a folder that `datasets` saved."""
    kind = "an Arrow" if source.format == "arrow" else "a parquet"
    with open_source(source.address) as file, explained_table_errors(source.address, kind):
        names, batches = _opened_table(file, source.format)
        if text_key not in names:
            raise DataError(
                f"{source.address}: there is no column {text_key!r}\n"
                f"  its columns are: {', '.join(names)}; name the column with the text with --text-key"
            )
        columns = [text_key, *(["meta"] if "meta" in names else [])]
        row = 0
        for batch in batches(columns):
            for name in columns:  # invalid offsets of values would crash the process
                _as_bytes(batch[name]).validate(full=True)
            metas = batch["meta"].to_pylist() if "meta" in columns else None
            if metas and _NOT_IN_JSON.search(str(batch["meta"].type)):
                metas = [json.loads(json.dumps(meta, default=_json_value)) for meta in metas]
            for index, scalar in enumerate(batch[text_key]):
                row += 1
                try:
                    text = scalar.as_py()
                except UnicodeDecodeError as error:
                    skips.bad("invalid_utf8", source.address, f"row {row}", utf8_detail(error))
                    continue
                if type(text) is not str:
                    skips.skip("no_text", source.address, f"row {row}", f"{text_key!r} is {type(text).__name__}")
                    continue
                yield text, _meta_of(metas[index] if metas else None)
        if on_bytes:
            on_bytes(source.num_bytes)


def _json_value(value: Any) -> str:
    """Return a value of a table that JSON lacks, such as a date, a decimal number or bytes, as text."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _as_bytes(column: Any) -> Any:
    """Return a column of texts as bytes, whose encoding is checked row by row; other columns as they are."""
    import pyarrow

    binary = {pyarrow.string(): pyarrow.binary(), pyarrow.large_string(): pyarrow.large_binary()}.get(column.type)
    return column if binary is None else column.cast(binary)


def _opened_table(file: BinaryIO, format: Format) -> tuple[list[str], Callable[[list[str]], Iterable[Any]]]:
    """Return the names of the columns, and a function that reads batches of rows of the given columns."""
    import pyarrow.ipc
    import pyarrow.parquet

    if format == "arrow":
        stream = pyarrow.ipc.open_stream(file)
        return stream.schema.names, lambda columns: (batch.select(columns) for batch in stream)
    table = pyarrow.parquet.ParquetFile(file)
    return table.schema_arrow.names, lambda columns: table.iter_batches(batch_size=1000, columns=columns)
