"""What can be taken out of plain-text books besides blank lines. All of it is optional."""

import re
from dataclasses import asdict, dataclass
from typing import Any

_BEGINS = re.compile(r"^\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG EBOOK[^\n]*\n", re.MULTILINE | re.IGNORECASE)
_ENDS = re.compile(r"^(?:\*\*\* ?END OF (?:THE|THIS) |END OF (?:THE )?)PROJECT GUTENBERG", re.MULTILINE | re.IGNORECASE)
_PAGE_NUMBER = re.compile(
    r"^[^\S\n]*(?:[-–—\[(][^\S\n]*)?(?:page |p\. ?)?(?:\d{1,4}|[ivxlc]{2,7})(?:[^\S\n]*[-–—\])])?[^\S\n]*\r?\n",
    re.MULTILINE | re.IGNORECASE,
)
_HYPHENATED = re.compile(r"(?<=[^\W\d_])-[^\S\n]*\r?\n[^\S\n]*(?=[^\W\d_])(?-i:(?=[a-zà-öø-ÿ]))")


@dataclass(frozen=True, kw_only=True)
class BookCleaning:
    """Choices of `corpus books`. Part of a source's identity."""

    strip_licence: bool = False
    """Take out what stands before and behind Project Gutenberg's marks."""
    drop_page_numbers: bool = False
    """Take out lines that are nothing but a page number. A chapter's number alone on its line goes too."""
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
            raw = _PAGE_NUMBER.sub("", raw)
        return _HYPHENATED.sub("", raw) if self.join_hyphens else raw
