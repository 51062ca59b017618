"""HTML and SVG text, escaped by construction: every value that is not `Markup` is escaped."""

import html
import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest

_VOID = frozenset({"meta", "br", "img", "input"})
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Markup(str):
    """Text that is already HTML or SVG. Only `tag`, `text` and `join` create it."""

    __slots__ = ()


Content = Markup | str | int | float | None


def text(value: object) -> Markup:
    """Escape `value` as visible text, and replace characters that XML forbids. Return Markup unchanged."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_NOT_XML.sub("\ufffd", str(value))))


def join(parts: Iterable[Content], between: str = "") -> Markup:
    """Join all parts that are not None."""
    return Markup(text(between).join(text(part) for part in parts if part is not None))


def tag(name: str, /, *children: Content, **attributes: Content) -> Markup:
    """Return an element. Attributes that are None are omitted; `class_` is class; other underscores become hyphens."""
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            words.append(f'{key.rstrip("_").replace("_", "-")}="{text(value)}"')
    opening = " ".join(words)
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{join(children)}</{name}>")


def row(*cells: Content, classes: Sequence[str | None] = (), class_: str | None = None) -> Markup:
    """Return a row of a table; `classes` are the CSS classes of its first cells."""
    return tag("tr", *(tag("td", cell, class_=name) for cell, name in zip_longest(cells, classes)), class_=class_)
