"""Documents from files of every format, one at a time: memory is bounded by the largest document.

Source of the formats: the data that Sabertooth (https://github.com/nikitakit/sabertooth) reads and writes; where it
loses documents silently, we count them.
"""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, BinaryIO

from pretrainkit.corpus.books import WHITE_SPACE, BookCleaning, book_text, wiki_articles
from pretrainkit.corpus.wikipedia.documents import dump_documents
from pretrainkit.errors import DataError
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import Format, OnBytes, SourceFile, open_source, plain_chunks, split_lines

SENTENCE_LINES = {"lines": "sentences"}
"""The mark in `meta` of documents from BERT text: each line of the text is one sentence."""
_MAX_VALUE_LINES = 1000
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus."""

    text: str
    """Free of lone surrogates: it always encodes to UTF-8."""
    meta: dict[str, Any] = field(default_factory=dict)
    """What the corpus says about the document; `dataset` and `pile_set_name` are common keys."""
    source: str = ""
    """Address of the file."""
    position: int = 0
    """Documents before this one in the file, counting only those that were not skipped. In a stretch of a file counted
    from the byte where it begins: still rising, and no two alike, since every document takes bytes."""

    @property
    def has_sentence_lines(self) -> bool:
        """True when each line of the text is one sentence (BERT text), so that no splitter is needed."""
        return self.meta.get("lines") == "sentences"


def text_hash(text: str) -> int:
    """64 bits of the text alone: equal for copies, wherever they lie. Decides what is held out, finds duplicates."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def read_documents(
    sources: Iterable[SourceFile],
    skips: Skips | None = None,
    *,
    text_key: str = "text",
    compat: bool = False,
    on_bytes: OnBytes = None,
) -> Iterator[Document]:
    """All documents of `sources`, in order.

    Args:
        skips: Counts what is left out and holds the budget for bad input; None: a budget of zero.
        text_key: Name of the key (JSONL) or column (parquet) with the text.
        compat: Read extracted Wikipedia as Sabertooth does, taking `<doc` anywhere in a line for a mark.

    Raises:
        DataError: A file cannot be opened, is truncated, or has bad input beyond the budget.
    """
    skips = Skips() if skips is None else skips
    for source in sources:
        # Documents of a stretch count from its first byte, which keeps their order over all stretches of a file.
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
            lines = decoded_lines(split_lines(chunks), source.address, skips)
            return ((text, {}) for text in wiki_articles(lines, source.address, skips, compat))
    raise DataError(
        f"{source.address}: {source.format} is not a format of documents\n"
        "  word counts (.tsv) are input of `pretrainkit corpus count-words` only; rename other files"
    )


def _jsonl(
    chunks: Iterator[bytes], source: SourceFile, skips: Skips, text_key: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    where = "" if source.begin is None else f" behind byte {source.begin}"
    for value, place in json_values(split_lines(chunks), source.address, skips, where):
        if type(value) is not dict:
            skips.skip("not_an_object", source.address, place, f"a JSON {type(value).__name__}")
            continue
        text = value.get(text_key)
        if type(text) is not str:
            keys = ", ".join(map(repr, list(value)[:8])) or "none"
            skips.skip("no_text", source.address, place, f"no string under {text_key!r}; the keys are: {keys}")
            continue
        yield text, _meta_of(value.get("meta"))


def _meta_of(meta: Any) -> dict[str, Any]:
    """The counter's rule for a meta that is not an object: as if there were none. It is kept under its own name."""
    return meta if type(meta) is dict else {} if meta is None else {"meta": meta}


def json_values(lines: Iterable[bytes], address: str, skips: Skips, where: str = "") -> Iterator[tuple[Any, str]]:
    """JSON values with their places ("line 3", then `where`). Several may share a line and one may span several; a bad
    line is counted and reading goes on behind it.
    """
    numbered = enumerate(lines, 1)
    waiting: deque[tuple[int, bytes]] = deque()  # lines that were looked at and are no part of a value before them

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
        try:
            values = [_decoder.decode(text)]
        except (ValueError, RecursionError):
            values, problem, behind = _several_values(text, following())
            waiting.extendleft(reversed(behind))
        for value in values:
            if (b"\\ud" in line or b"\\uD" in line) and _has_lone_surrogate(value):
                skips.bad("invalid_json", address, place, "an escape names half of a surrogate pair")
            else:
                yield value, place
        if problem:
            skips.bad("invalid_json", address, place, problem)


def _several_values(
    text: str, following: Iterator[tuple[int, bytes]]
) -> tuple[list[Any], str | None, list[tuple[int, bytes]]]:
    """The values that begin on a line, what is wrong with its rest, and the lines behind it that are no part of them.

    A line that merely lacks its end is tried together with those behind it, at most a thousand; if that does not make a
    value, only the first line is bad and the others are read by themselves.
    """
    values: list[Any] = []
    behind: list[tuple[int, bytes]] = []
    position, num_seen, problem = 0, 0, None
    while position < len(text):
        if text[position] in " \t\r\n":
            position += 1
            continue
        try:
            value, position = _decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            problem = f"{error.msg} at character {error.pos}: {text[error.pos : error.pos + 40]!r}"
            # The mistake is that the text stops: more lines may help.
            lacks_end = error.pos >= len(text.rstrip())
            entry = next(following, None) if lacks_end and num_seen < _MAX_VALUE_LINES else None
            if entry is None:
                break
            behind.append(entry)
            num_seen += 1
            text += "\n" + entry[1].decode(errors="replace")
        except (ValueError, RecursionError) as error:
            problem = f"{type(error).__name__}: {str(error)[:80]}"
            break
        else:
            values.append(value)
            behind, problem = [], None
    return values, problem, behind


def _has_lone_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def utf8_detail(error: UnicodeDecodeError) -> str:
    """Which byte of a line is wrong, and what to do."""
    return (
        f"byte {error.start} of it is 0x{error.object[error.start]:02x}: {error.reason}; "
        "convert the file to UTF-8 (for example iconv -f WINDOWS-1252 -t UTF-8)"
    )


def _bert_text(chunks: Iterator[bytes], source: SourceFile, skips: Skips) -> Iterator[tuple[str, dict[str, Any]]]:
    """Documents between lines of Unicode white space; lines keep their ends and blanks, as in Sabertooth, and the last
    line of the file gets an end where it has none.
    """
    lines: list[str] = []
    for _, line in chain(decoded_lines(split_lines(chunks), source.address, skips), [(0, "")]):
        if line.strip(WHITE_SPACE):
            lines.append(line + "\n")
        elif lines:
            yield "".join(lines), dict(SENTENCE_LINES)
            lines = []


def decoded_lines(lines: Iterable[bytes], address: str, skips: Skips, first: int = 1) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, from `first` on; one with invalid UTF-8 is bad by itself."""
    for number, raw in enumerate(lines, first):
        try:
            yield number, raw.decode()
        except UnicodeDecodeError as error:
            skips.bad("invalid_utf8", address, f"line {number}", utf8_detail(error))


def _book(chunks: Iterator[bytes], source: SourceFile, skips: Skips) -> Iterator[tuple[str, dict[str, Any]]]:
    raw = b"".join(chunks)
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
    """The documents of a parquet file, or of an Arrow file of a folder that `datasets` saved."""
    import pyarrow

    with open_source(source.address) as file:
        try:
            names, batches = _opened_table(file, source.format)
            if text_key not in names:
                raise DataError(
                    f"{source.address}: no column {text_key!r}\n"
                    f"  its columns are: {', '.join(names)}; name the one with the text by --text-key"
                )
            columns = [text_key, *(["meta"] if "meta" in names else [])]
            row = 0
            for batch in batches(columns):
                metas = batch["meta"].to_pylist() if "meta" in columns else None
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
        except (pyarrow.ArrowException, OSError) as error:
            kind = "an Arrow" if source.format == "arrow" else "a parquet"
            raise DataError(
                f"{source.address}: not {kind} file, or damaged: {error}\n  download or create the file again"
            ) from error


def _opened_table(file: BinaryIO, format: Format) -> tuple[list[str], Callable[[list[str]], Iterable[Any]]]:
    """The names of the columns, and a function from the wanted ones to batches of rows."""
    import pyarrow.ipc
    import pyarrow.parquet

    if format == "arrow":
        stream = pyarrow.ipc.open_stream(file)
        return stream.schema.names, lambda columns: (batch.select(columns) for batch in stream)
    table = pyarrow.parquet.ParquetFile(file)
    return table.schema_arrow.names, lambda columns: table.iter_batches(batch_size=1000, columns=columns)
