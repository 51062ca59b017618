"""Cells of samples with several pictures or texts, which may be marked right or wrong.

In `samples.json` such a cell is a list of {"text": ..., "image": ..., "is_right": ...}, all of them optional. An image
is a data URI, so that the page needs no other file. Only raster formats are allowed, because they cannot hold markup.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pretrainkit.report.markup import Markup, tag

_PICTURE = re.compile(r"data:image/(?:jpeg|png|webp);base64,[A-Za-z0-9+/]+={0,2}")
_MAX_CHARACTERS = 200_000
"""Longest data URI: samples hold small pictures."""
_MAX_ITEMS = 30


class Shown(NamedTuple):
    text: str
    """The text, or an empty string."""
    picture: str
    """A data URI, or empty."""
    is_right: bool | None
    """True if right, False if wrong, None if the item cannot be either."""


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
    return Shown("" if text is None else str(text), picture or "", is_right if isinstance(is_right, bool) else None)


def shown_cell(items: tuple[Shown, ...]) -> Markup:
    """Return the items of a cell: pictures side by side, texts below each other."""
    return tag("div", *map(_figure, items), class_="shown")


def _figure(item: Shown) -> Markup:
    picture = tag("img", src=item.picture, alt=item.text, title=item.text or None) if item.picture else None
    kind = mark = None
    if item.is_right is not None:
        kind, sign, tone, title = ("hit", "✓", "good", "right") if item.is_right else ("miss", "✗", "bad", "wrong")
        mark = tag("span", sign, class_=tone, title=title)
    words = [mark, " " if mark and item.text else None, item.text or None]
    caption = tag("figcaption", *words) if any(words) else None
    classes = ["picture" if picture else None, "alone" if picture and not caption else None, kind]
    return tag("figure", picture, caption, class_=" ".join(filter(None, classes)) or None)
