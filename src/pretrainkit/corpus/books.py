"""Extract the text of books, one file per book, and of Wikipedia articles that WikiExtractor wrote.

Source: the rules of Sabertooth's corpus builder. Its defects are fixed unless a compatible mode is set: `<doc` is a
mark only at the start of a line, and an article without any line is skipped and counted (the original aborts).
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
"""Unicode's White_Space property. Python's `str.strip()` also removes U+001C to U+001F, which are text here."""
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
"""Maximum difference of two Roman numbers in a sequence of pages. Blank pages and titles have no number."""
_HYPHENATED = re.compile(r"(?<=[^\W\d_])-[^\S\n]*\r?\n[^\S\n]*(?=[^\W\d_])(?-i:(?=[a-zà-öø-ÿ]))")


@dataclass(frozen=True, kw_only=True)
class BookCleaning:
    """Options of `corpus books`. They are part of a source's identity."""

    strip_licence: bool = False
    """Remove the text outside of Project Gutenberg's marks."""
    drop_page_numbers: bool = False
    """Remove lines that contain only a page number. A plain Roman number must be in a sequence with others: `civil` is
    not a number, and a single `vi` stays. The number of a chapter alone on its line is also removed."""
    join_hyphens: bool = False
    """Join words that are hyphenated at the end of a line, if the next line continues in lower case."""

    def content(self) -> dict[str, Any]:
        """Return the options, for fingerprints."""
        return asdict(self)

    def clean(self, raw: str) -> str:
        """Return the text of a book after applying the options."""
        if self.strip_licence:
            begin, end = _BEGINS.search(raw), _ENDS.search(raw)
            first = begin.end() if begin else 0
            raw = raw[first : end.start() if end and end.start() >= first else len(raw)]
        if self.drop_page_numbers:
            raw = _without_page_numbers(raw)
        return _HYPHENATED.sub("", raw) if self.join_hyphens else raw


def _without_page_numbers(raw: str) -> str:
    matches = list(_PAGE_NUMBER.finditer(raw))
    romans = [(match, _roman_value(match["roman"])) for match in matches if match["roman"]]
    dropped = {match.start() for match in matches if not match["roman"]}
    # Lower and upper case are separate sequences: pages of prefaces are in lower case, chapter numbers in upper case.
    for is_small in (True, False):
        pages = [(match, value) for match, value in romans if value and match["roman"].islower() == is_small]
        gaps = [0, *(after - before for (_, before), (_, after) in pairwise(pages)), 0]
        for (match, _), gap_before, gap_after in zip(pages, gaps, gaps[1:]):
            is_alone = match[0].strip() == match["roman"]
            if not is_alone or 0 < gap_before <= _MAX_GAP or 0 < gap_after <= _MAX_GAP:
                dropped.add(match.start())
    return _PAGE_NUMBER.sub(lambda match: "" if match.start() in dropped else match[0], raw)


def _roman_value(numeral: str) -> int:
    """Return the value of a Roman numeral in lower or upper case; 0 if it is not one."""
    small = numeral.lower()
    if numeral not in (small, numeral.upper()) or not _ROMAN.fullmatch(small):
        return 0
    values = [_VALUES[letter] for letter in small]
    return sum(-value if value < max(values[index:]) else value for index, value in enumerate(values))


def book_text(raw: str) -> str:
    r"""Split at \n or \r\n, strip Unicode white space from the lines, drop empty lines, and join the others with \n.

    A byte order mark and a single \r inside a line are kept. An empty book gives "".
    """
    trimmed = (line.strip(WHITE_SPACE) for line in raw.split("\n"))
    return "\n".join(line for line in trimmed if line)


def wiki_articles(
    lines: Iterable[tuple[int, str]], address: str, skips: Skips, match_anywhere: bool = False
) -> Iterator[str]:
    """Yield the texts of the articles between `<doc ...>` and `</doc>` lines, without their first line, the title.

    Empty lines are dropped and other lines stay unchanged. Lines outside an article are ignored. An article of only a
    title gives "".

    Args:
        lines: Lines without line feed, numbered from 1.
        skips: Counts articles without a line, and articles that are not closed (bad input).
        match_anywhere: Find the marks anywhere in a line, as Sabertooth does, and drop the rest of such lines.
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
    skips.bad("article_not_closed", address, f"line {line}", "no </doc> follows; the file may be truncated")
