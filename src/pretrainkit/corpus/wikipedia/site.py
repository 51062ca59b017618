"""What a dump says about its wiki: language, address, names of namespaces."""

import html
import re
from dataclasses import dataclass

_CANONICAL = {
    -2: "Media",
    -1: "Special",
    1: "Talk",
    2: "User",
    3: "User talk",
    4: "Project",
    5: "Project talk",
    6: "File",
    7: "File talk",
    8: "MediaWiki",
    9: "MediaWiki talk",
    10: "Template",
    11: "Template talk",
    12: "Help",
    13: "Help talk",
    14: "Category",
    15: "Category talk",
}
"""Names that every edition knows besides its own."""
_HIDDEN = frozenset({-2, 6, 14})
"""Media, File, Category: links there show nothing of themselves in the running text."""
_TEMPLATE = 10


@dataclass(frozen=True)
class Site:
    """One edition."""

    language: str
    """Code, such as "en"; "" where the dump does not say."""
    base: str
    """Address of the main page, as in the dump."""
    namespaces: dict[int, tuple[str, ...]]
    """Number to names, casefolded."""

    @property
    def hidden_prefixes(self) -> frozenset[str]:
        """Casefolded names before a colon whose links are no text."""
        return frozenset(name for number in _HIDDEN for name in self.namespaces.get(number, ()))

    @property
    def template_prefixes(self) -> frozenset[str]:
        """Casefolded names before a colon that templates may carry."""
        return frozenset(self.namespaces.get(_TEMPLATE, ()))

    @property
    def address(self) -> str:
        """The wiki's address without the main page's name."""
        return self.base.rpartition("/")[0]


def parse_site(head: str) -> Site:
    """From everything before the first page of a dump."""
    language = re.search(r'<mediawiki[^<>]*\bxml:lang="([^"]*)"', head)
    base = re.search(r"<base>([^<]*)</base>", head)
    names = {number: {name.casefold()} for number, name in _CANONICAL.items()}
    names[6].add("image")
    for key, name in re.findall(r'<namespace key="(-?\d+)"[^<>]*>([^<]*)</namespace>', head):
        names.setdefault(int(key), set()).add(html.unescape(name).casefold())
    return Site(
        language[1] if language else "",
        html.unescape(base[1]) if base else "",
        {number: tuple(sorted(known)) for number, known in sorted(names.items())},
    )
