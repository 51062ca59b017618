"""Bar charts as SVG text, in the look of the line charts: how many lie between two edges, how many are of a kind."""

from collections.abc import Mapping, Sequence

from pretrainkit.report.axis import tick_labels, ticks
from pretrainkit.report.chart import svg
from pretrainkit.report.markup import Content, tag
from pretrainkit.report.numbers import number, percent, short

_WIDTH, _HEIGHT = 500, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 50, 42
_ROW = 24
_NAME, _COUNT = 210, 130
_TICK_ROOM = 64


def histogram(edges: Sequence[float], counts: Sequence[int], *, title: str, x_label: str) -> str:
    """Numbers of documents as one `<svg>` element: a bar per bin, all as wide, with some of the edges written below.

    `edges` rise and are one more than `counts`; the last bin holds its upper edge, too.
    """
    if len(edges) != len(counts) + bool(len(counts)):
        raise ValueError(f"{len(edges)} edges of {len(counts)} bins: expected one more than bins")
    if not any(counts):
        return svg([], title, _WIDTH, _HEIGHT)
    parts: list[Content] = [tag("text", "documents", x=_LEFT - 44, y=39)]
    bottom = _HEIGHT - _BOTTOM
    high = max(counts) * 1.06
    y_ticks = ticks(0, high, 4, whole=True)
    for value, name in zip(y_ticks, tick_labels(y_ticks), strict=True):
        y = round(bottom - value / high * (bottom - _TOP), 1)
        parts.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", name, x=_LEFT - 8, y=y + 4, text_anchor="end"))
    room = (_WIDTH - _RIGHT - _LEFT) / len(counts)
    total = sum(counts)
    for index, count in enumerate(counts):
        size = count / high * (bottom - _TOP)
        last = edges[index + 1] - (index < len(counts) - 1)
        span = number(int(edges[index])) + (f" to {number(int(last))}" if last > edges[index] else "")
        said = f"{span} {x_label}: {number(count)} documents, {percent(count / total)}"
        x, bar_width = round(_LEFT + index * room, 1), round(max(room - 1.5, 0.5), 1)
        area = tag("rect", x=x, y=_TOP, width=bar_width, height=bottom - _TOP, class_="area", fill="transparent")
        bar = tag("rect", x=x, y=round(bottom - size, 1), width=bar_width, height=round(size, 1), class_="f0")
        parts.append(tag("g", tag("title", said), area, bar))
    parts.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=bottom, y2=bottom, class_="base"))
    every = max(1, -(-_TICK_ROOM // max(int(room), 1)))
    for index in range(0, len(edges), every):
        x = round(_LEFT + index * room, 1)
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="base"))
        parts.append(tag("text", short(edges[index]), x=x, y=bottom + 18, text_anchor="middle"))
    parts.append(tag("text", x_label, x=_WIDTH - _RIGHT, y=_HEIGHT - 6, text_anchor="end"))
    return svg(parts, title, _WIDTH, _HEIGHT)


def share_bars(counts: Mapping[str, int], *, title: str, most: int = 12) -> str:
    """A row per kind with its bar, count and share, in the order given; what is behind the first `most` is one row."""
    shown = dict(list(counts.items())[:most])
    if len(counts) > most:
        shown[f"{len(counts) - most} others"] = sum(list(counts.values())[most:])
    total = sum(counts.values())
    shown = shown if total else {}
    largest = max(shown.values(), default=0)
    height = 36 + _ROW * max(len(shown), 1)
    parts: list[Content] = []
    for row, (name, count) in enumerate(shown.items()):
        y = 36 + row * _ROW
        cut = name if len(name) <= 28 else name[:27] + "…"
        size = round(max(count / largest, 0.002) * (_WIDTH - _NAME - _COUNT - _RIGHT), 1)
        parts.append(
            tag(
                "g",
                tag("title", f"{name}: {number(count)}, {percent(count / total)}"),
                tag("text", cut, x=_LEFT - 44, y=y + 15, class_="key"),
                tag("rect", x=_NAME, y=y + 3, width=size, height=_ROW - 8, class_="f2" if row >= most else "f0"),
                tag("text", f"{number(count)} · {percent(count / total)}", x=_NAME + size + 8, y=y + 15),
            )
        )
    return svg(parts, title, _WIDTH, height)
