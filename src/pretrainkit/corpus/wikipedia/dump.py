"""Streaming reader for MediaWiki XML dumps (plain, bz2 or gzip). The largest allowed page bounds the memory.

A span of a dump can be read alone. It begins at any byte of a plain file, or where a bz2 stream begins (`next_stream`
finds these, so no index file is needed). A page belongs to the span in which its `<page>` begins, and is read to its
end beyond the span. So the spans of a file contain each page exactly once, wherever the file was cut.
"""

import bz2
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, BinaryIO
from xml.parsers import expat

from pretrainkit.corpus.wikipedia.site import Site, parse_site
from pretrainkit.errors import DataError
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import OnBytes, SourceFile, open_source
from pretrainkit.files.spans import next_stream

MAX_PAGE_BYTES = 20_000_000
"""Maximum size of a page's XML. MediaWiki itself saves pages of at most 2 MB."""
_END_OF_DUMP = b"</mediawiki>"
_PAGE_MARK = re.compile(b"<page>|</page>|" + _END_OF_DUMP)
_READ_BYTES = 1 << 17
_PLAIN_BYTES = 1 << 20
_GATHERED_BYTES = 1 << 18


class Mark(Enum):
    """Signal of a reader between pieces of a dump."""

    span_ended = "the following pieces belong to the next span"
    gap = "bytes are missing between the previous and the next piece"


Piece = bytes | Mark


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a dump."""

    title: str
    namespace: int
    id: int
    revision: int
    redirect: str | None
    """Title of the target if the page is a redirect."""
    text: str
    """Wikitext, unescaped from XML."""
    quotes_are_escaped: bool
    """True if the dump writes the text's quotation marks as `&quot;`."""


def read_site(source: SourceFile) -> Site:
    """Parse the site information at the beginning of a dump. Raises DataError if the file is not a MediaWiki dump."""
    whole = SourceFile(source.address, source.format, source.num_bytes)
    head = b""
    try:
        for piece in _pieces(whole, Skips(), None):
            if isinstance(piece, bytes):
                head += piece
            if b"</siteinfo>" in head or b"<page>" in head or len(head) > _PLAIN_BYTES:
                break
    except DataError:  # damage after the head is reported when the pages are read
        if b"<mediawiki" not in head:
            raise
    if b"<mediawiki" not in head:
        raise DataError(
            f"{source.address} is not a MediaWiki dump: its first {len(head)} bytes do not contain <mediawiki>\n"
            "  pass a ...-pages-articles.xml file (also .bz2, .gz), or extracted <doc> files to `corpus shards --wiki`"
        )
    return parse_site(head.decode(errors="replace").partition("<page>")[0])


def read_pages(source: SourceFile, skips: Skips, on_bytes: OnBytes = None) -> Iterator[Page]:
    """Yield the pages that begin in `source`, in the order of the dump.

    Bad input is: damaged streams, and pages that are unclosed, too large, invalid XML or invalid UTF-8. Raises
    DataError if the file cannot be opened or has more bad input than allowed.
    """
    for number, xml in enumerate(_page_xml(_pieces(source, skips, on_bytes), source, skips), 1):
        page = _parse(xml, source, number, skips)
        if page is not None:
            yield page


def _pieces(source: SourceFile, skips: Skips, on_bytes: OnBytes) -> Iterator[Piece]:
    """Yield the decompressed content in pieces of at least `_GATHERED_BYTES`."""
    held = bytearray()
    try:
        for piece in _unpacked(source, skips, on_bytes):
            if isinstance(piece, bytes):
                held += piece
            if len(held) >= _GATHERED_BYTES or (held and isinstance(piece, Mark)):
                yield bytes(held)
                held.clear()
            if isinstance(piece, Mark):
                yield piece
    except DataError:
        yield bytes(held)  # the content before the damage is valid
        raise
    if held:
        yield bytes(held)


def _unpacked(source: SourceFile, skips: Skips, on_bytes: OnBytes) -> Iterator[Piece]:
    with open_source(source.address) as file:
        if begin := source.begin or 0:
            file.seek(begin)
        end = None if source.begin is None else begin + source.num_bytes
        if source.suffix == ".bz2":
            yield from _bz2_pieces(file, begin, end, source, skips, on_bytes)
        elif source.suffix == ".gz":
            yield from _gz_pieces(file, source, skips, on_bytes)
        else:
            yield from _plain_pieces(file, begin, end, on_bytes)


def _plain_pieces(file: BinaryIO, place: int, end: int | None, on_bytes: OnBytes) -> Iterator[Piece]:
    while end is None or place < end:
        chunk = file.read(_PLAIN_BYTES if end is None else min(_PLAIN_BYTES, end - place))
        if not chunk:
            return
        place += len(chunk)
        if on_bytes:
            on_bytes(len(chunk))
        yield chunk
    yield Mark.span_ended
    yield from iter(partial(file.read, _PLAIN_BYTES), b"")


def _gz_pieces(file: BinaryIO, source: SourceFile, skips: Skips, on_bytes: OnBytes) -> Iterator[Piece]:
    frame: Any = None
    place = 0
    while chunk := file.read(_READ_BYTES):
        place += len(chunk)
        if on_bytes:
            on_bytes(len(chunk))
        while chunk:
            frame = frame or zlib.decompressobj(wbits=31)
            try:
                yield frame.decompress(chunk, _PLAIN_BYTES)
                while frame.unconsumed_tail:
                    yield frame.decompress(frame.unconsumed_tail, _PLAIN_BYTES)
            except zlib.error as error:
                _damaged(skips, source, f"before byte {place}", "gzip", error)
                yield Mark.gap
                return
            chunk, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        _cut_off(skips, source, place, "gzip")
        yield Mark.gap


def _bz2_pieces(
    file: BinaryIO, begin: int, end: int | None, source: SourceFile, skips: Skips, on_bytes: OnBytes
) -> Iterator[Piece]:
    """Decompress stream by stream. After a damaged stream, continue at the beginning of the next stream."""
    place = begin  # offset of the first byte that no decoder has received
    chunk = b""
    decoder: Any = None
    ended = False
    while True:
        if not chunk:
            chunk = file.read(_READ_BYTES)
            if on_bytes and not ended:
                on_bytes(len(chunk))
        if not chunk:
            break
        if decoder is None:
            if end is not None and place >= end and not ended:
                ended = True
                yield Mark.span_ended
            if not chunk.startswith(b"B"):  # a file of another format, a gap, or padding after the last stream
                is_other, hole = place == begin, place
                chunk, place = next_stream(file, chunk, place)
                if ended and chunk:
                    break
                if is_other or chunk:
                    _damaged(skips, source, f"byte {hole}", "bz2", "no stream begins here")
                    yield Mark.gap
                continue
            decoder = bz2.BZ2Decompressor()
        try:
            plain = decoder.decompress(chunk, _PLAIN_BYTES)
            place += len(chunk)
            if plain:
                yield plain
            while not decoder.eof and not decoder.needs_input:
                yield decoder.decompress(b"", _PLAIN_BYTES)
        except (OSError, ValueError) as error:
            if ended:
                break
            _damaged(skips, source, f"before byte {place + len(chunk)}", "bz2", error)
            yield Mark.gap
            decoder = None
            chunk, place = next_stream(file, chunk[1:], place + 1)
            continue
        chunk = b""
        if decoder.eof:
            # The next stream begins directly after the end of a stream.
            chunk, decoder = decoder.unused_data, None
            place -= len(chunk)
    if ended:  # the reader of the next span counts the damage there
        yield Mark.gap
    elif decoder is not None:
        _cut_off(skips, source, place, "bz2")
        yield Mark.gap


def _damaged(skips: Skips, source: SourceFile, place: str, kind: str, error: object) -> None:
    skips.bad("damaged_" + kind, source.address, place, f"decompression failed: {error}; download the file again")


def _cut_off(skips: Skips, source: SourceFile, place: int, kind: str) -> None:
    detail = "the file ends in the middle of a compressed stream; download it again"
    skips.bad("truncated_" + kind, source.address, f"byte {place}", detail)


def _page_xml(pieces: Iterator[Piece], source: SourceFile, skips: Skips) -> Iterator[bytes]:
    """Yield the XML between `<page>` and `</page>` of the pages that begin before `Mark.span_ended`."""
    rest = b""
    own = None  # number of bytes of `rest` that belong to this span; None: all
    is_whole = False  # True after the end of the dump, or if the missing part is already counted
    for piece in pieces:
        if isinstance(piece, Mark):
            if piece is Mark.span_ended:
                own = len(rest)
            else:
                rest, is_whole = b"", True  # an open page is lost with the damaged bytes, which are counted
            if own is not None and not rest:
                return
            continue
        rest += piece
        start = None  # offset of the open page
        cut = 0
        for match in _PAGE_MARK.finditer(rest):
            if match[0] == b"<page>":
                if start is not None:
                    place = _place_of(rest[start : start + 300])
                    skips.bad("page_not_closed", source.address, place, "no </page> follows")
                start = match.start()
                if own is not None and start >= own:
                    return
            elif start is None:
                is_whole = is_whole or match[0] == _END_OF_DUMP
            elif match[0] == b"</page>":
                if match.start() - start <= MAX_PAGE_BYTES:
                    yield rest[start + len(b"<page>") : match.start()]
                else:
                    _too_large(skips, source, rest[start : start + 300])
                start, cut = None, match.end()
        # Keep the end of the piece: it may be the beginning of a mark.
        cut = max(cut, len(rest) - len(_END_OF_DUMP) + 1) if start is None else start
        rest = rest[cut:]
        if len(rest) > MAX_PAGE_BYTES + _PLAIN_BYTES:
            _too_large(skips, source, rest[:300])
            rest = b""
        if own is not None:
            own = max(0, own - cut) if rest else 0
            if not own:
                return
    if rest.startswith(b"<page>"):
        skips.bad("page_not_closed", source.address, _place_of(rest[:300]), "the dump ends in the middle of this page")
    elif not is_whole:
        skips.bad(
            "truncated_dump", source.address, "its end", "no </mediawiki> follows the last page; download it again"
        )


def _place_of(xml: bytes) -> str:
    match = re.search(rb"<title>([^<]*)", xml)
    return f"page {match[1].decode(errors='replace')!r}" if match else "a page without a title"


def _too_large(skips: Skips, source: SourceFile, xml: bytes) -> None:
    detail = f"more than {MAX_PAGE_BYTES / 1e6:.0f} MB of XML; MediaWiki itself saves pages of at most 2 MB"
    skips.bad("page_too_large", source.address, _place_of(xml), detail)


_HEAD = re.compile(
    rb"\s*<title>([^<]*)</title>\s*(?:<ns>(-?\d+)</ns>\s*)?<id>(\d+)</id>\s*(?:<redirect title=\"([^\"]*)\" ?/>\s*)?"
)
_REVISION = re.compile(rb"<revision>\s*<id>(\d+)</id>")
_TEXT = re.compile(rb"<text\b[^>]*>")


def _parse(xml: bytes, source: SourceFile, number: int, skips: Skips) -> Page | None:
    def bad(reason: str, detail: str) -> None:
        skips.bad(reason, source.address, _place_of(xml[:2000]), detail)

    head = _HEAD.match(xml)
    revision = _REVISION.search(xml, head.end()) if head else None
    if head is None or revision is None:
        bad("invalid_xml", f"page {number} does not have a title, an id and a revision in this order")
        return None
    try:
        raw = _last_text(xml, revision.end())
        title, text = unescape_xml(head[1]), unescape_xml(raw)
        leads_to = None if head[4] is None else unescape_xml(head[4])
    except UnicodeDecodeError as error:
        bad("invalid_utf8", f"byte 0x{error.object[error.start]:02x}: {error.reason}")
        return None
    except ValueError as error:
        bad("invalid_xml", str(error))
        return None
    return Page(title, int(head[2] or 0), int(head[3]), int(revision[1]), leads_to, text, b"&quot;" in raw)


def _last_text(xml: bytes, position: int) -> bytes:
    """Return the bytes between `<text ...>` and `</text>` of the last revision; empty for `<text />`."""
    raw = b""
    while opening := _TEXT.search(xml, position):
        position = opening.end()
        end = position if opening[0].endswith(b"/>") else xml.find(b"</text>", position)
        if end < 0:
            raise ValueError("its text has no end tag </text>")
        raw, position = xml[position:end], end
    return raw


def unescape_xml(raw: bytes) -> str:
    """Decode XML text without elements.

    Raises UnicodeDecodeError for invalid UTF-8, and ValueError for invalid XML: unescaped signs, unknown references, or
    characters that XML does not allow."""
    if b"<" in raw:
        raise ValueError("its text has a < that is not escaped")
    parts: list[str] = []
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text, parser.buffer_size, parser.CharacterDataHandler = True, _PLAIN_BYTES, parts.append
    try:
        parser.Parse(b"<t>", False)
        parser.Parse(raw, False)
        parser.Parse(b"</t>", True)
    except expat.ExpatError as error:
        raw.decode()
        raise ValueError(f"its text is not valid XML: {error}") from error
    return "".join(parts)
