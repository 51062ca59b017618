"""Removal of HTML and extension tags from wikitext. Their content is dropped, kept, or protected from later parsing.

Takes linear time: each tag is parsed once, and a missing closing tag is searched for once per element name.
"""

import re
from collections.abc import Callable

_TAG = re.compile(r"<(?:!--|/?([a-zA-Z][a-zA-Z0-9]*)\b[^<>]*>)")
_DROPPED = frozenset(
    (
        "ref references gallery timeline score imagemap syntaxhighlight source graph mapframe maplink templatedata "
        "inputbox categorytree indicator hiero table form input select option textarea style script templatestyles "
        "noinclude pre ce chem listing charinsert section languages dynamicpagelist quiz rss math"
    ).split()
)
"""Elements whose content is not running text. The content of `math` is converted to text."""
_BREAKS = dict.fromkeys("br hr p div blockquote center poem ul ol dl".split(), "\n\n") | {
    "li": "\n* ",
    "dd": "\n: ",
    "dt": "\n; ",
}
_KEPT = frozenset(
    (
        "abbr b bdi bdo big cite code del dfn em font h1 h2 h3 h4 h5 h6 i ins kbd mark nobr onlyinclude "
        "includeonly q rb rp rt ruby s samp small span strike strong sub sup tt u var wbr noindex tr td th caption "
        "thead tbody tfoot col colgroup main article time data a"
    ).split()
)
"""Elements whose tags are removed and whose content is kept."""
_KNOWN = _DROPPED | _KEPT | _BREAKS.keys() | {"nowiki"}
_LISTED = frozenset("*#:;|!")
"""First characters of lines in lists and tables. In these lines `<br>` becomes a space."""
_SHIFT = 0xF0000 - 0x20
_GUARDED = {ord(sign): _SHIFT + ord(sign) for sign in "{}[]|'<>=&*#:;!_-~\n "}
_GUARD = chr(0xF0101)
"""Marks text that contains guarded characters."""
ERROR = chr(0xF0103) + _GUARD
"""Result of a parser function that fails; `unguard` removes it."""
_UNGUARDED = {guard: chr(sign) for sign, guard in _GUARDED.items()} | dict.fromkeys(map(ord, ERROR), "")
BAR = chr(0xF0100)
"""First character of a line that is kept unchanged."""
PREFORMATTED = chr(0xF0102)
"""First character of a line that began with a space in the wikitext."""

SUPERSCRIPTS = str.maketrans("0123456789+-−=()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿ")
SUBSCRIPTS = str.maketrans("0123456789+-−=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎")
_RAISED = re.compile(r"<(su[bp])\b[^<>]*>([^<>\n]{1,40})</su[bp]>", re.IGNORECASE)
_SIGNS = re.compile(r"[0-9+\-−=()]+|n")


def guard(text: str) -> str:
    """Replace markup characters by private-use characters, so that later steps do not parse them."""
    return text.translate(_GUARDED) + _GUARD


def unguard(text: str) -> str:
    """Undo `guard`."""
    return text.translate(_UNGUARDED) if _GUARD in text else text


def strip_elements(text: str, on_formula: Callable[[str], str]) -> str:
    """Remove comments, tags, and the content of elements without running text; guard `nowiki` and formulas.

    `on_formula` converts the TeX of a formula to text."""
    if "<su" in text or "<SU" in text:
        text = _RAISED.sub(_raised, text)
    parts: list[str] = []
    missing: set[str] = set()
    position, line = 0, 0
    begins_line = False  # True if only tags come between the beginning of the line and `position`
    for match in _TAG.finditer(text):
        start = match.start()
        if start < position:
            continue
        name = match[1]
        if name is not None:
            name = name.lower()
            if name not in _KNOWN:
                continue
        if (feed := text.rfind("\n", position, start)) >= 0:
            line = feed + 1
        if begins_line:
            position = _skip_spaces(text, position, start)
        begins_line = start == line or (begins_line and start == position)
        parts.append(text[position:start])
        position = match.end()
        if name is None:
            end = _end_of(text, "-->", position, missing)
            if end is not None:
                # A comment that fills its line is removed with the line feed, as in MediaWiki.
                fills_line = (start == 0 or text[start - 1] == "\n") and text[end : end + 1] == "\n"
                position = end + fills_line
            continue
        tag = match[0]
        if name in _BREAKS:
            if name == "br" and text[line] in _LISTED:
                parts.append(" ")
            elif tag[1] != "/" or name != "li":
                parts.append(_BREAKS[name])
                begins_line = True
        elif name not in _KEPT and tag[1] != "/" and tag[-2] != "/":
            end = _end_of(text, f"</{name}", position, missing)
            if end is None:
                continue
            if name == "nowiki":
                parts.append(guard(text[position:end]))
            elif name == "math":
                parts.append(guard(on_formula(text[position:end])))
            begins_line = begins_line and name in _DROPPED and name != "math"
            closing = text.find(">", end)
            position = len(text) if closing < 0 else closing + 1
    parts.append(text[_skip_spaces(text, position, len(text)) if begins_line else position :])
    return "".join(parts)


def _skip_spaces(text: str, position: int, end: int) -> int:
    while position < end and text[position] == " ":
        position += 1
    return position


def _end_of(text: str, closing: str, position: int, missing: set[str]) -> int | None:
    """Return the position of the next `closing` in lower or upper case; None if the rest of the page has none."""
    if closing in missing:
        return None
    end = text.find(closing, position)
    if end < 0:
        end = text.find(closing.upper(), position)
    if end < 0:
        missing.add(closing)
        return None
    return end + 3 if closing == "-->" else end


def _raised(match: re.Match[str]) -> str:
    inner = match[2].strip()
    if not _SIGNS.fullmatch(inner):
        return match[2]
    return inner.translate(SUPERSCRIPTS if match[1].lower() == "sup" else SUBSCRIPTS)
