"""Cells of samples with several pictures or texts, which may be marked right or wrong.

In `samples.json` such a cell is a list of {"text": ..., "image": ..., "is_right": ..., "marks": ...}, all of them
optional. An image is a data URI, so that the page needs no other file. Only raster formats are allowed, because they
cannot hold markup. Marks are [begin, end, is_right or null] for parts of the text, in order.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pretrainkit.report.markup import Content, Markup, join, tag

_PICTURE = re.compile(r"data:image/(?:jpeg|png|webp);base64,[A-Za-z0-9+/]+={0,2}")
_MAX_CHARACTERS = 200_000
"""Longest data URI: samples hold small pictures."""
_MAX_ITEMS = 30


Mark = tuple[int, int, bool | None]
"""First and last character (exclusive) of a part of a text, and whether it is right."""


class Shown(NamedTuple):
    text: str
    """The text, or an empty string."""
    picture: str
    """A data URI, or empty."""
    is_right: bool | None
    """True if right, False if wrong, None if the item cannot be either."""
    marks: tuple[Mark, ...] = ()
    """Highlighted parts of the text."""


def read_shown(value: list[Any], notes: list[str]) -> tuple[Shown, ...]:
    """Read a list in `samples.json`. Omit invalid pictures and append a note to `notes`."""
    return tuple(_read_one(item, notes) for item in value[:_MAX_ITEMS])


def _read_one(item: Any, notes: list[str]) -> Shown:
    if not isinstance(item, Mapping):
        return Shown(str(item), "", None)
    picture, is_right = item.get("image"), item.get("is_right")
    text = item.get("text")
    if picture and not (isinstance(picture, str) and len(picture) <= _MAX_CHARACTERS and _PICTURE.fullmatch(picture)):
        note = "samples.json: left out a picture that is not a small JPEG, PNG or WebP as a data URI"
        notes += [note] if note not in notes else []
        picture = ""
    text = "" if text is None else str(text)
    is_right = is_right if isinstance(is_right, bool) else None
    return Shown(text, picture or "", is_right, tuple(_marks(item.get("marks"), len(text))))


def _marks(value: Any, length: int) -> Iterator[Mark]:
    """Yield the valid marks, without those that overlap an earlier one."""
    at = 0
    for mark in value if isinstance(value, list) else ():
        if isinstance(mark, list) and len(mark) == 3 and all(type(place) is int for place in mark[:2]):
            begin, end, is_right = mark
            if at <= begin < end <= length:
                yield begin, end, is_right if isinstance(is_right, bool) else None
                at = end


def marked(text: str, marks: Sequence[Mark]) -> Markup:
    """Return a text with its highlighted parts."""
    parts: list[Content] = []
    at = 0
    for begin, end, is_right in marks:
        kind = None if is_right is None else "hit" if is_right else "miss"
        parts += [text[at:begin], tag("mark", text[begin:end], class_=kind)]
        at = end
    return join([*parts, text[at:]])


def shown_cell(items: tuple[Shown, ...]) -> Markup:
    """Return the items of a cell: pictures side by side, texts below each other; a text alone as it is."""
    if len(items) == 1 and not items[0].picture and items[0].is_right is None:
        return marked(items[0].text, items[0].marks)
    return tag("div", *map(_figure, items), class_="shown")


def _figure(item: Shown) -> Markup:
    picture = tag("img", src=item.picture, alt=item.text, title=item.text or None) if item.picture else None
    kind = mark = None
    if item.is_right is not None:
        kind, sign, tone, title = ("hit", "✓", "good", "right") if item.is_right else ("miss", "✗", "bad", "wrong")
        mark = tag("span", sign, class_=tone, title=title)
    words = [mark, " " if mark and item.text else None, marked(item.text, item.marks) if item.text else None]
    caption = tag("figcaption", *words) if any(words) else None
    classes = ["picture" if picture else None, "alone" if picture and not caption else None, kind]
    return tag("figure", picture, caption, class_=" ".join(filter(None, classes)) or None)
