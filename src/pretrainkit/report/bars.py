"""Bars as SVG text, which needs no script: histograms and shares of a corpus."""

import math
from collections.abc import Mapping, Sequence

from pretrainkit.report.markup import Content, Markup, tag
from pretrainkit.report.numbers import number, percent, short

BAR_STYLE = """
svg.chart { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", sans-serif;
  font-variant-numeric: tabular-nums; }
.chart text { fill: var(--quiet); } .chart .name { fill: var(--ink); font-size: 14px; font-weight: 600; }
.chart .key { fill: var(--ink); } .chart .grid { stroke: var(--line); } .chart .base { stroke: var(--axis); }
.chart .f0 { fill: var(--c0); } .chart .f2 { fill: var(--c2); }
"""
"""CSS rules of the drawings. Colours are variables, which the page defines."""

_WIDTH, _HEIGHT = 500, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 50, 42
_ROW = 24
_NAME, _COUNT = 210, 130
_TICK_SPACING = 64


def histogram(
    edges: Sequence[float], counts: Sequence[int], *, title: str, x_label: str, unit: str = "documents"
) -> Markup:
    """Draw numbers of documents, or of another unit, as one `<svg>` element.

    There is a bar per bin, equally wide, with labels at some edges. `edges` is sorted and has one
    element more than `counts`. The last bin includes its upper edge.
    """
    if len(edges) != len(counts) + bool(len(counts)):
        raise ValueError(f"{len(edges)} edges for {len(counts)} bins: expected {len(counts) + 1} edges")
    if not any(counts):
        return svg([], title, _WIDTH, _HEIGHT)
    parts: list[Content] = [tag("text", unit, x=_LEFT - 44, y=39)]
    bottom = _HEIGHT - _BOTTOM
    high = max(counts) * 1.06
    for value in ticks(high):
        y = round(bottom - value / high * (bottom - _TOP), 1)
        parts.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", short(value), x=_LEFT - 8, y=y + 4, text_anchor="end"))
    slot = (_WIDTH - _RIGHT - _LEFT) / len(counts)
    total = sum(counts)
    for index, count in enumerate(counts):
        size = count / high * (bottom - _TOP)
        last = edges[index + 1] - (index < len(counts) - 1)
        span = number(int(edges[index])) + (f" to {number(int(last))}" if last > edges[index] else "")
        tooltip = f"{span} {x_label}: {number(count)} {unit}, {percent(count / total)}"
        x, bar_width = round(_LEFT + index * slot, 1), round(max(slot - 1.5, 0.5), 1)
        area = tag("rect", x=x, y=_TOP, width=bar_width, height=bottom - _TOP, class_="area", fill="transparent")
        bar = tag("rect", x=x, y=round(bottom - size, 1), width=bar_width, height=round(size, 1), class_="f0")
        parts.append(tag("g", tag("title", tooltip), area, bar))
    parts.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=bottom, y2=bottom, class_="base"))
    every = max(1, -(-_TICK_SPACING // max(int(slot), 1)))
    for index in range(0, len(edges), every):
        x = round(_LEFT + index * slot, 1)
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="base"))
        parts.append(tag("text", short(edges[index]), x=x, y=bottom + 18, text_anchor="middle"))
    parts.append(tag("text", x_label, x=_WIDTH - _RIGHT, y=_HEIGHT - 6, text_anchor="end"))
    return svg(parts, title, _WIDTH, _HEIGHT)


def share_bars(counts: Mapping[str, int], *, title: str, most: int = 12) -> Markup:
    """Draw a row per kind with its bar, count and share, in this order. Kinds after the first `most` share a row."""
    shown = dict(list(counts.items())[:most])
    if len(counts) > most:
        shown[f"{len(counts) - most} others"] = sum(list(counts.values())[most:])
    total = sum(counts.values())
    shown = shown if total else {}
    largest = max(shown.values(), default=0)
    height = 36 + _ROW * max(len(shown), 1)
    parts: list[Content] = []
    for place, (name, count) in enumerate(shown.items()):
        y = 36 + place * _ROW
        cut = name if len(name) <= 28 else name[:27] + "…"
        size = round(max(count / largest, 0.002) * (_WIDTH - _NAME - _COUNT - _RIGHT), 1)
        tooltip = tag("title", f"{name}: {number(count)}, {percent(count / total)}")
        key = tag("text", cut, x=_LEFT - 44, y=y + 15, class_="key")
        bar = tag("rect", x=_NAME, y=y + 3, width=size, height=_ROW - 8, class_="f2" if place >= most else "f0")
        share = tag("text", f"{number(count)} · {percent(count / total)}", x=_NAME + size + 8, y=y + 15)
        parts.append(tag("g", tooltip, key, bar, share))
    return svg(parts, title, _WIDTH, height)


def svg(parts: Sequence[Content], title: str, width: int, height: int) -> Markup:
    """Return a picture of these parts below its title, with "no data" if there are none."""
    # In low pictures, the title reaches below the middle.
    nothing = tag("text", "no data", x=width / 2, y=max(height / 2, 46), text_anchor="middle")
    return tag(
        "svg",
        tag("text", title, x=_LEFT - 44, y=20, class_="name"),
        *(parts or [nothing]),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        class_="chart",
        role="img",
        aria_label=title,
    )


def ticks(high: float) -> range:
    """Return 3 to 7 multiples of 1, 2 or 5 times a power of ten, from 0 to `high`, or 0 and 1."""
    power = 10 ** max(math.floor(math.log10(high / 4)), 0)
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= high / 6)
    return range(0, math.floor(high) + 1, step)
