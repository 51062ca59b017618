"""Fuzzing of what reads foreign files, with atheris (`pip install atheris`); not part of the test suite.

    python tests/fuzz/corpus.py cleaner -atheris_runs=200000 -max_len=160
    python tests/fuzz/corpus.py compat|reader|archive|books -atheris_runs=20000 -max_len=160

An input that makes one raise anything but a DataError, or that takes more CPU time than its size allows, is written to
a file and ends the run. Seen on 2026-11-22 with -max_len=160, without a crash or a hang: cleaner 300,000 executions,
books 300,000, compat 100,000, reader 60,000, archive 40,000. (libFuzzer's own -timeout counts pauses of the machine.)
"""

import bz2
import gzip
import hashlib
import io
import json
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["pretrainkit.corpus"]):
    from pretrainkit.corpus.books import BookCleaning, book_text
    from pretrainkit.corpus.pack import pack, unpack
    from pretrainkit.corpus.readers import read_documents
    from pretrainkit.corpus.wikipedia.clean import Cleaner
    from pretrainkit.corpus.wikipedia.compat import wikiextractor_text
    from pretrainkit.corpus.wikipedia.options import Extraction
    from pretrainkit.corpus.wikipedia.site import parse_site
    from pretrainkit.corpus.wikipedia.word_lists import words
    from pretrainkit.errors import DataError
    from pretrainkit.files.skips import Skips
    from pretrainkit.files.sources import find_sources
    from pretrainkit.files.spans import cut_large

TOKENS = words(
    "{{ }} {{{ }}} [[ ]] [ ] {| |} |- | || ! !! = == === ' '' <ref> </ref> <ref/> <nowiki> </nowiki> <!-- -->"
    " <br> <math> </math> <sup> </sup> <su <a <div </div> <table> * # : ; & &nbsp; &amp; &#x; &#0; http://a // ( ) , ."
    " 2 __TOC__ convert cvt km ft in C F -1 1/2 to lang de val formatnum: #if: #ifeq: #switch: #expr: 1+1 lc: nowrap as"
    " of birth date File: Category: fr: :Category: w: frac chem unité name=x adj=mid disp=or sigfig=2 a b é 東"
)
TOKENS += [
    "'''",
    "'''''",
    "\n",
    "\n\n",
    " ",
    "\t",
    "\u00a0",
    "\x00",
    "\U000f0020",
    "\U000f0101",
    "\U000f0100",
    "{{convert|",
    "[[File:",
]
_SECONDS = 1.0
_REPEATED = 120
"""Bytes up to which an input is repeated."""
_SECONDS_PER_BYTE = 5e-5
SITE = parse_site('<mediawiki xml:lang="en"><siteinfo><namespace key="6">File</namespace></siteinfo>')
CLEANERS = [
    Cleaner(SITE, Extraction()),
    Cleaner(SITE, Extraction(sections=True, lists=True, tables=True)),
]
HEAD = b'<mediawiki xml:lang="en"><siteinfo><base>http://e.org/a</base></siteinfo>\n'


def markup_of(data: bytes) -> str:
    """Each byte a sign of markup, or itself; every eighth input is text as it stands. A second byte from 241 on says
    how often all comes again: what takes more than linear time shows then."""
    times = 1 + (data[1] - 0xF0) ** 2 if len(data) > 2 and data[1] > 0xF0 else 1
    times = max(1, min(times, _REPEATED // max(len(data), 1)))
    if data[:1] < b"\x20":
        return data[2:].decode("utf-8", "ignore") * times
    return "".join(TOKENS[byte] if byte < len(TOKENS) else chr(byte) for byte in data[2:]) * times


def fuzz_cleaner(data: bytes) -> int:
    text = markup_of(data)
    lines = CLEANERS[data[:1] > b"\x90"].clean(text, "Title")
    assert lines == "" or all(line.strip() for line in lines.split("\n")), repr(lines)
    return len(text)


def fuzz_compat(data: bytes) -> int:
    text = markup_of(data)
    wikiextractor_text(text, "A: title")
    return len(text)


def page(number: int, text: bytes) -> bytes:
    return b"<page><title>P%d</title><ns>0</ns><id>%d</id><revision><id>1</id><text>%s</text></revision></page>\n" % (
        number,
        number,
        text,
    )


DUMPS = [
    (".xml.bz2", bz2.compress(HEAD) + b"".join(bz2.compress(page(n, b"some text " * n)) for n in range(1, 5))),
    (".xml.gz", gzip.compress(HEAD + b"".join(page(n, b"text " * n) for n in range(1, 5)), mtime=0)),
    (".xml", HEAD + b"".join(page(n, b"text &amp; more " * n) for n in range(1, 4))),
    (".jsonl", b'{"text":"a","meta":{}}\n{"text":"\\u00e9"}\n[1]\n'),
    (".jsonl.gz", gzip.compress(b'{"text":"a"}\n' * 9, mtime=0)),
    (".txt", "a\nb\n\nc\u3000\n".encode()),
    (".wiki", b'<doc id="1">\nT\n\ntext\n</doc>\n'),
]


def damaged(content: bytes, data: bytes) -> bytes:
    """Some bytes of `content` replaced, taken out, or put in, as `data` says."""
    changed = bytearray(content)
    for at in range(0, len(data) - 3, 4):
        place = int.from_bytes(data[at : at + 2], "little") % (len(changed) + 1)
        changed[place : place + data[at + 2] % 4] = data[at + 3 : at + 4] * (data[at + 2] // 64)
    return bytes(changed)


def fuzz_reader(data: bytes) -> int:
    suffix, content = DUMPS[data[0] % len(DUMPS)] if data else DUMPS[0]
    raw = data[1:] if data[:1] > b"\x80" else damaged(content, data[1:])
    path = Path(FOLDER, f"input{suffix}")
    path.write_bytes(raw)
    for budget in (0, 1000):
        try:
            sources = find_sources([path], "wiki" if suffix == ".wiki" else "auto")
            whole = list(read_documents(sources, Skips(budget)))
            if suffix in (".xml", ".xml.bz2") and budget:
                parts = [part for source in sources for part in cut_large(source, max(1, len(raw) // 3))]
                texts = [document.text for document in read_documents(parts, Skips(budget))]
                if suffix == ".xml.bz2" or b"</mediawiki>" not in raw:
                    assert len(texts) <= len(whole) + len(parts)
        except DataError:
            continue
        for document in whole:
            document.text.encode()
    return len(raw)


def fuzz_archive(data: bytes) -> int:
    out = Path(FOLDER, "out")
    path = Path(FOLDER, "a.tar")
    if data[:1] < b"\x80":
        path.write_bytes(damaged(ARCHIVE, data[1:]))
    else:  # names and kinds as they come, listed as if all were well
        members = [(name[1:].decode("utf-8", "replace")[:90], name[:1]) for name in data[1:].split(b"\n")]
        sha256 = hashlib.sha256(b"x").hexdigest()
        listed = [{"name": name, "num_bytes": 1, "sha256": sha256} for name, _ in members]
        contents = json.dumps({"kind": "pack", "files": listed}).encode()
        with tarfile.open(path, "w") as tar:
            for name, kind, content in [("pack.json", b"", contents), *((*member, b"x") for member in members)]:
                info = tarfile.TarInfo(name)
                info.type = kind if kind in b"123456S" and kind else b"0"
                info.linkname, info.size = "../../etc", len(content)
                tar.addfile(info, io.BytesIO(content))
        shutil.rmtree(out, ignore_errors=True)
    before = sorted(Path(FOLDER).iterdir())
    with suppress(DataError):
        unpack(path, out)
    after = [place for place in sorted(Path(FOLDER).iterdir()) if place != out]
    assert after == [place for place in before if place != out], "something was written outside"
    return path.stat().st_size


def fuzz_books(data: bytes) -> int:
    signs = [*"ivxlcdmIVX0123456789 -\n\r\x85[]", "page ", "*** START OF THE PROJECT GUTENBERG EBOOK", "\n\n", "word"]
    text = "".join(signs[byte % len(signs)] for byte in data) if data[:1] < b"\x80" else data.decode("utf-8", "replace")
    book_text(BookCleaning(strip_licence=True, drop_page_numbers=True, join_hyphens=True).clean(text))
    return len(text)


FUZZERS: dict[str, Callable[[bytes], int]] = {
    "cleaner": fuzz_cleaner,
    "compat": fuzz_compat,
    "reader": fuzz_reader,
    "archive": fuzz_archive,
    "books": fuzz_books,
}


def timed(fuzzer: Callable[[bytes], int]) -> Callable[[bytes], None]:
    """Raises where an input takes longer than its size allows."""

    def one(data: bytes) -> None:
        start = time.process_time()
        size = fuzzer(data)
        seconds = time.process_time() - start
        if seconds > _SECONDS + _SECONDS_PER_BYTE * size:
            raise TimeoutError(f"{seconds:.1f} s for {size} bytes or characters")

    return one


if __name__ == "__main__":
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in FUZZERS:
        sys.exit(f"name one of: {', '.join(FUZZERS)}")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as FOLDER:
        Path(FOLDER, "in").mkdir()
        Path(FOLDER, "in/words.txt").write_text("some words\n" * 20)
        pack([Path(FOLDER, "in")], Path(FOLDER, "a.tar"))
        ARCHIVE = Path(FOLDER, "a.tar").read_bytes()
        atheris.Setup(sys.argv, timed(FUZZERS[name]))
        atheris.Fuzz()
