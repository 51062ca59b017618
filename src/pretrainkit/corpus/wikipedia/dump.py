"""Pages of a MediaWiki XML dump, plain, bz2 or gzip, streamed: memory is bounded by the largest page allowed.

A dump can be read from any byte where a bz2 stream begins (`next_stream` finds them by their mark, so no index file
is needed), a plain one from any byte: a page belongs to the stretch in which its `<page>` begins, and is read to its
end beyond the stretch. So stretches of a file give each page once, wherever they were cut.
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
"""Of the XML of a page. MediaWiki itself saves no page beyond 2 MB."""
_END_OF_DUMP = b"</mediawiki>"
_PAGE_MARK = re.compile(b"<page>|</page>|" + _END_OF_DUMP)
_READ_BYTES = 1 << 17
_PLAIN_BYTES = 1 << 20
_GATHERED_BYTES = 1 << 18


class Mark(Enum):
    """What a reader says between pieces of a dump."""

    stretch_ended = "what follows belongs to the next stretch"
    gap = "bytes before and after do not belong together"


Piece = bytes | Mark


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a dump."""

    title: str
    namespace: int
    id: int
    revision: int
    redirect: str | None
    """Title that the page leads to, where it is a redirect."""
    text: str
    """Wikitext, no longer escaped for XML."""
    quotes_are_escaped: bool
    """In the dump, its quotation marks are `&quot;`."""


def read_site(source: SourceFile) -> Site:
    """What the head of a dump says about its wiki; an unnamed one where it has no head. Raises DataError where the
    file is not a MediaWiki dump."""
    whole = SourceFile(source.address, source.format, source.num_bytes)
    head = b""
    try:
        for piece in _pieces(whole, Skips(), None):
            if isinstance(piece, bytes):
                head += piece
            if b"</siteinfo>" in head or b"<page>" in head or len(head) > _PLAIN_BYTES:
                break
    except DataError:  # of damage behind the head says who reads the pages, within the budget for bad input
        if b"<mediawiki" not in head:
            raise
    if b"<mediawiki" not in head:
        raise DataError(
            f"{source.address} is not a MediaWiki dump: no <mediawiki> in its first {len(head)} bytes\n"
            "  give a ...-pages-articles.xml, also as .bz2 or .gz; extracted <doc> files are --wiki of `corpus shards`"
        )
    return parse_site(head.decode(errors="replace").partition("<page>")[0])


def read_pages(source: SourceFile, skips: Skips, on_bytes: OnBytes = None) -> Iterator[Page]:
    """The pages that begin in `source`, in the order of the dump.

    Damaged streams, pages that are not closed, too large, or not XML or UTF-8 count as bad input. Raises DataError
    where the file cannot be opened, or has bad input beyond the budget.
    """
    for number, xml in enumerate(_page_xml(_pieces(source, skips, on_bytes), source, skips), 1):
        page = _parse(xml, source, number, skips)
        if page is not None:
            yield page


def _pieces(source: SourceFile, skips: Skips, on_bytes: OnBytes) -> Iterator[Piece]:
    """What the file holds, unpacked, in pieces of at least `_GATHERED_BYTES`, however small they were packed."""
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
        yield bytes(held)  # what stands before the damage was read
        raise
    if held:
        yield bytes(held)


def _unpacked(source: SourceFile, skips: Skips, on_bytes: OnBytes) -> Iterator[Piece]:
    with open_source(source.address) as file:
        if begin := source.begin or 0:
            file.seek(begin)
        end = None if source.begin is None else begin + source.num_bytes
        if source.address.endswith(".bz2"):
            yield from _bz2_pieces(file, begin, end, source, skips, on_bytes)
        elif source.address.endswith(".gz"):
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
    yield Mark.stretch_ended
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
    """Streams one by one. Behind a damaged one reading goes on where the next begins."""
    place = begin  # of the first byte not given to a decoder
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
                yield Mark.stretch_ended
            if not chunk.startswith(b"B"):  # a file of another kind, a hole, or padding behind the last stream
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
            # Behind the end of a stream the next one begins.
            chunk, decoder = decoder.unused_data, None
            place -= len(chunk)
    if ended:  # what is damaged behind this stretch is counted by the one in which it lies
        yield Mark.gap
    elif decoder is not None:
        _cut_off(skips, source, place, "bz2")
        yield Mark.gap


def _damaged(skips: Skips, source: SourceFile, place: str, kind: str, error: object) -> None:
    skips.bad("damaged_" + kind, source.address, place, f"the decompressor says: {error}; fetch the file again")


def _cut_off(skips: Skips, source: SourceFile, place: int, kind: str) -> None:
    detail = "the file breaks off in the middle of a stream; fetch it again"
    skips.bad("truncated_" + kind, source.address, f"byte {place}", detail)


def _page_xml(pieces: Iterator[Piece], source: SourceFile, skips: Skips) -> Iterator[bytes]:
    """What stands between `<page>` and `</page>`, of the pages that begin before the mark `stretch_ended`."""
    rest = b""
    own = None  # bytes of `rest` that still belong to this stretch; None: all
    is_whole = False  # the end of the dump was seen, or what is missing is counted already
    for piece in pieces:
        if isinstance(piece, Mark):
            if piece is Mark.stretch_ended:
                own = len(rest)
            else:
                rest, is_whole = b"", True  # what was open is lost with the damaged bytes, which are counted
            if own is not None and not rest:
                return
            continue
        rest += piece
        start = None  # of the page that is open
        cut = 0
        for found in _PAGE_MARK.finditer(rest):
            if found[0] == b"<page>":
                if start is not None:
                    place = _place_of(rest[start : start + 300])
                    skips.bad("page_not_closed", source.address, place, "no </page> follows")
                start = found.start()
                if own is not None and start >= own:
                    return
            elif start is None:
                is_whole = is_whole or found[0] == _END_OF_DUMP
            elif found[0] == b"</page>":
                if found.start() - start <= MAX_PAGE_BYTES:
                    yield rest[start + len(b"<page>") : found.start()]
                else:
                    _too_large(skips, source, rest[start : start + 300])
                start, cut = None, found.end()
        # The beginning of a mark may stand at the end of the piece, and is kept.
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
        skips.bad("page_not_closed", source.address, _place_of(rest[:300]), "the dump ends in the middle of it")
    elif not is_whole:
        skips.bad("truncated_dump", source.address, "its end", "no </mediawiki> follows the last page; fetch it again")


def _place_of(xml: bytes) -> str:
    found = re.search(rb"<title>([^<]*)", xml)
    return f"page {found[1].decode(errors='replace')!r}" if found else "a page without a title"


def _too_large(skips: Skips, source: SourceFile, xml: bytes) -> None:
    detail = f"more than {MAX_PAGE_BYTES / 1e6:.0f} MB of XML; MediaWiki itself saves no page beyond 2 MB"
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
        bad("invalid_xml", f"page {number}: no title, id and revision in this order")
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
    """Between `<text ...>` and `</text>`, of the last revision; empty for `<text />`."""
    raw = b""
    while opening := _TEXT.search(xml, position):
        position = opening.end()
        end = position if opening[0].endswith(b"/>") else xml.find(b"</text>", position)
        if end < 0:
            raise ValueError("its text is not closed")
        raw, position = xml[position:end], end
    return raw


def unescape_xml(raw: bytes) -> str:
    """The characters of an XML text without elements. Raises UnicodeDecodeError where it is not UTF-8, and
    ValueError where it is not XML: signs that are not escaped, unknown references, characters that XML does not
    have."""
    if b"<" in raw:
        raise ValueError("a < in its text is not escaped")
    parts: list[str] = []
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text, parser.buffer_size, parser.CharacterDataHandler = True, _PLAIN_BYTES, parts.append
    try:
        parser.Parse(b"<t>", False)
        parser.Parse(raw, False)
        parser.Parse(b"</t>", True)
    except expat.ExpatError as error:
        raw.decode()
        raise ValueError(f"its text is not XML: {error}") from error
    return "".join(parts)
