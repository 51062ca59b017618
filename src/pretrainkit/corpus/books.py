"""Text of whole-file books, what can be taken out of them, and text of Wikipedia articles that WikiExtractor wrote.

Source: the rules of Sabertooth's corpus builder. Its defects are mended unless asked for: `<doc` counts as a mark only
at the start of a line, and an article without any line is skipped and counted, where the original aborts.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from pretrainkit.files.skips import Skips

WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's White_Space property. Python's `str.strip()` takes U+001C to U+001F too, which are text here."""
_BEGINS = re.compile(r"^\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG EBOOK[^\n]*\n", re.MULTILINE | re.IGNORECASE)
_ENDS = re.compile(r"^(?:\*\*\* ?END OF (?:THE|THIS) |END OF (?:THE )?)PROJECT GUTENBERG", re.MULTILINE | re.IGNORECASE)
_PAGE_NUMBER = re.compile(
    r"^[^\S\n]*(?:[-–—\[(][^\S\n]*)?(?:page |p\. ?)?(?:\d{1,4}|(?P<roman>[ivxlcdm]{1,9}))(?:[^\S\n]*[-–—\])])?"
    r"[^\S\n]*\r?\n",
    re.MULTILINE | re.IGNORECASE,
)
_ROMAN = re.compile(r"(m{0,3})(cm|cd|d?c{0,3})(xc|xl|l?x{0,3})(ix|iv|v?i{0,3})")
_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100, "d": 500, "m": 1000}
_MAX_GAP = 3
"""Pages from one Roman number to the next that still make a sequence: blank pages and titles carry none."""
_HYPHENATED = re.compile(r"(?<=[^\W\d_])-[^\S\n]*\r?\n[^\S\n]*(?=[^\W\d_])(?-i:(?=[a-zà-öø-ÿ]))")


@dataclass(frozen=True, kw_only=True)
class BookCleaning:
    """Choices of `corpus books`. Part of a source's identity."""

    strip_licence: bool = False
    """Take out what is outside of Project Gutenberg's marks."""
    drop_page_numbers: bool = False
    """Take out lines that are nothing but a page number. A Roman one that is no more than that must stand in a sequence
    with others: `civil` is none, and a lone `vi` stays. A chapter's number alone on its line goes too."""
    join_hyphens: bool = False
    """Join words that a hyphen cuts at the end of a line, where the next line goes on in small letters."""

    def content(self) -> dict[str, Any]:
        """For fingerprints."""
        return asdict(self)

    def clean(self, raw: str) -> str:
        """The text of a book with what was chosen taken out."""
        if self.strip_licence:
            begin, end = _BEGINS.search(raw), _ENDS.search(raw)
            first = begin.end() if begin else 0
            raw = raw[first : end.start() if end and end.start() >= first else len(raw)]
        if self.drop_page_numbers:
            raw = _without_page_numbers(raw)
        return _HYPHENATED.sub("", raw) if self.join_hyphens else raw


def _without_page_numbers(raw: str) -> str:
    found = list(_PAGE_NUMBER.finditer(raw))
    romans = [(match, _roman_value(match["roman"])) for match in found if match["roman"]]
    dropped = {match.start() for match in found if not match["roman"]}
    # Small and capital letters count by themselves: prefaces have pages in small ones, chapters numbers in capitals.
    for is_small in (True, False):
        pages = [(match, value) for match, value in romans if value and match["roman"].islower() == is_small]
        gaps = [0, *(after - before for (_, before), (_, after) in pairwise(pages)), 0]
        for (match, _), gap_before, gap_behind in zip(pages, gaps, gaps[1:]):
            is_alone = match[0].strip() == match["roman"]
            if not is_alone or 0 < gap_before <= _MAX_GAP or 0 < gap_behind <= _MAX_GAP:
                dropped.add(match.start())
    return _PAGE_NUMBER.sub(lambda match: "" if match.start() in dropped else match[0], raw)


def _roman_value(numeral: str) -> int:
    """What a numeral all in small or all in capital letters is worth; 0 where it is none."""
    small = numeral.lower()
    if numeral not in (small, numeral.upper()) or not _ROMAN.fullmatch(small):
        return 0
    values = [_VALUES[letter] for letter in small]
    return sum(-value if value < max(values[index:]) else value for index, value in enumerate(values))


def book_text(raw: str) -> str:
    r"""Lines cut at \n or \r\n, trimmed of Unicode white space, empty ones dropped, joined by \n.

    A byte order mark and a lone \r inside a line survive. An empty book gives "".
    """
    trimmed = (line.strip(WHITE_SPACE) for line in raw.split("\n"))
    return "\n".join(line for line in trimmed if line)


def wiki_articles(
    lines: Iterable[tuple[int, str]], address: str, skips: Skips, match_anywhere: bool = False
) -> Iterator[str]:
    """Texts of the articles between `<doc ...>` and `</doc>` lines, without their first line, the title.

    Empty lines go, all others stay as they are; lines outside an article are not text. A title alone gives "".

    Args:
        lines: Numbered from 1, without line feed.
        skips: Counts articles without a line, and articles that are not closed (bad input).
        match_anywhere: Take the marks anywhere in a line, as Sabertooth does, and lose the rest of such lines.
    """
    article: list[str] | None = None
    opened = 0
    for number, line in lines:
        line = line.removesuffix("\r")
        opens = "<doc" in line if match_anywhere else line.startswith(("<doc ", "<doc>"))
        closes = "</doc>" in line if match_anywhere else line.startswith("</doc>")
        if opens and (article is None or not match_anywhere):
            if article is not None:
                _not_closed(skips, address, opened)
            article, opened = [], number
        elif closes:
            if article:
                yield "\n".join(article[1:])
            elif article is not None:
                skips.skip("article_without_lines", address, f"line {opened}")
            article = None
        elif article is not None and line and not opens:
            article.append(line)
    if article is not None:
        _not_closed(skips, address, opened)


def _not_closed(skips: Skips, address: str, line: int) -> None:
    skips.bad("article_not_closed", address, f"line {line}", "no </doc> follows; the file may be cut off")
