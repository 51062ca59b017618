"""Conversion of Wikipedia's markup to text: megabytes of wikitext per CPU-second, with and without XML and bz2.

The peers are mwparserfromhell and WikiExtractor if they are installed (`pip install wikiextractor`; GPL, used only for
comparison). Both get a part of the pages, without XML; WikiExtractor expands no templates. The engines alternate in
rounds. The result is the best round of each.

    python benchmarks/wikipedia.py [--dump FILE.xml.bz2] [--rounds 5] [--quick]

Without --dump, pages are generated with markup similar to that of English articles: links, references, nested
templates, tables, entities.
"""

import argparse
import bz2
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial
from html import escape
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from pretrainkit.corpus.readers import read_documents
from pretrainkit.corpus.wikipedia.clean import Cleaner
from pretrainkit.corpus.wikipedia.compat import wikiextractor_text
from pretrainkit.corpus.wikipedia.dump import Page, read_pages, read_site
from pretrainkit.corpus.wikipedia.options import Extraction
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import SourceFile, find_sources

_SLOW_BYTES = 300_000
"""Size of the wikitext for the slow contestants."""


def make_dump(path: Path, num_pages: int) -> None:
    """Write a multistream dump of generated pages."""
    draw = random.Random(0)
    letters = "etaoinshrdlu"
    vocabulary = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(5000)]

    def words(num: int) -> str:
        return " ".join(draw.choices(vocabulary, k=num))

    def sentence() -> str:
        text = words(draw.randint(8, 25)).capitalize()
        for _ in range(draw.choice((0, 1, 1, 2))):
            text += f" [[{words(2)}|{words(1)}]] and [[{words(1)}]]s"
        text += draw.choice(("", "", f" ''{words(2)}''", f" {{{{convert|{draw.randint(1, 99)}|km|mi}}}}", " 5&nbsp;km"))
        cite = f"<ref>{{{{cite web |url=http://e.org/{words(1)} |title={words(6)} |date={{{{date|2001}}}}}}}}</ref>"
        return text + "." + (cite if draw.random() < 0.4 else "")

    def page(number: int) -> str:
        text = f"{{{{Infobox thing\n| name = {words(2)}\n}}}}\n'''{words(2)}''' is {sentence()}\n"
        for _ in range(draw.randint(3, 9)):
            text += f"\n== {words(2)} ==\n" + " ".join(sentence() for _ in range(draw.randint(3, 9))) + "\n"
        rows = "".join(f"|-\n| {words(2)} || {words(3)}\n" for _ in range(5))
        text += (
            f"{{| class=wikitable\n{rows}|}}\n* {words(4)}\n* {words(3)}\n[[File:{words(1)}.jpg|thumb|{words(4)}]]\n"
        )
        text += f"[[Category:{words(1)}]]"
        return (
            f"<page><title>{words(2)}</title><ns>0</ns><id>{number}</id><revision><id>{number}</id>"
            f'<text xml:space="preserve">{escape(text)}</text></revision></page>\n'
        )

    with open(path, "wb") as file:
        file.write(bz2.compress(b'<mediawiki xml:lang="en">\n'))
        for first in range(0, num_pages, 100):
            file.write(bz2.compress("".join(page(first + index) for index in range(100)).encode()))
        file.write(bz2.compress(b"</mediawiki>"))


def _parsed(pages: list[Page]) -> int:
    import mwparserfromhell

    return sum(len(mwparserfromhell.parse(page.text).strip_code()) for page in pages)


def _extracted(pages: list[Page]) -> int:
    from wikiextractor.extract import Extractor

    size = 0
    for page in pages:
        lines = escape(page.text).splitlines(keepends=True)
        extractor = Extractor(page.id, page.revision, "", page.title, lines)
        size += sum(map(len, extractor.clean_text("".join(lines), expand_templates=False)))
    return size


def contestants(source: SourceFile, plain: SourceFile) -> dict[str, tuple[Callable[[], int], int]]:
    """Return the functions to measure, and the bytes of wikitext that they read, by name."""
    pages = [page for page in read_pages(plain, Skips(1000)) if page.namespace == 0 and page.redirect is None]
    cleaner = Cleaner(read_site(plain), Extraction())
    few, num_few = [], 0
    for page in pages:
        if num_few < _SLOW_BYTES:
            few.append(page)
            num_few += len(page.text.encode())
    size = sum(len(page.text.encode()) for page in pages)
    engines: dict[str, tuple[Callable[[], int], int]] = {
        "ours, markup alone": (lambda: sum(len(cleaner.clean(page.text, page.title)) for page in pages), size),
        "ours, from XML": (lambda: len(list(read_documents([plain], Skips(1000)))), size),
        "ours, from bz2": (lambda: len(list(read_documents([source], Skips(1000)))), size),
        "ours, WikiExtractor's text, markup alone": (
            lambda: sum(len(wikiextractor_text(page.text, page.title)) for page in pages),
            size,
        ),
    }
    for package, name, work in (
        ("mwparserfromhell", "mwparserfromhell, strip_code", _parsed),
        ("wikiextractor", "WikiExtractor, clean_text", _extracted),
    ):
        if find_spec(package):
            engines[f"{name}, {version(package)}"] = (partial(work, few), num_few)
    return engines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", type=Path, help="a dump, .xml.bz2, instead of generated pages")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few pages, one round: a test that it runs")
    arguments = parser.parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    with tempfile.TemporaryDirectory() as folder:
        packed = arguments.dump or Path(folder) / "made.xml.bz2"
        if arguments.dump is None:
            make_dump(packed, 100 if arguments.quick else 1500)
        plain = Path(folder) / "plain.xml"
        plain.write_bytes(bz2.decompress(packed.read_bytes()))
        engines = contestants(find_sources([packed])[0], find_sources([plain])[0])
        best: dict[str, float] = {}
        for _ in range(rounds):
            for name, (work, _) in engines.items():
                start = time.process_time()
                work()
                seconds = time.process_time() - start
                best[name] = min(best.get(name, seconds), seconds)
    source = arguments.dump.name if arguments.dump else "made pages"
    print(
        f"{source}, {next(iter(engines.values()))[1] / 1e6:.1f} MB of wikitext, {rounds} interleaved rounds, the best\n"
    )
    print("| engine | MB of wikitext per CPU-s |\n|---|---|")
    for name, (_, size) in engines.items():
        print(f"| {name} | {size / 1e6 / best[name]:.2f} |")


if __name__ == "__main__":
    main()
