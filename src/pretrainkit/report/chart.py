"""Line charts as SVG text, without scripts. They can be scaled to any size, and show the values under the pointer.

Colours are CSS variables, which the page defines for light and dark. `line_chart(..., standalone=True)` includes them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from pretrainkit.report.axis import Axis, Floats, log_labels, log_ticks, thin, tick_labels, ticks, widened
from pretrainkit.report.markup import Content, Markup, join, tag, text
from pretrainkit.report.numbers import number

COLORS = """
:root { --surface: #ffffff; --ink: #1c2330; --quiet: #5d6778; --line: #e3e7ee; --axis: #aab3c2;
  --c0: #2563c9; --c1: #d9560b; --c2: #0d8a6f; --c3: #7a4fd0; --bad: #c62f3b; --good: #16794c; --accent: #fff3c9; }
@media (prefers-color-scheme: dark) { :root { --surface: #161b24; --ink: #e6eaf2; --quiet: #9aa5b8; --line: #2a3240;
  --axis: #566176; --c0: #6ea8fe; --c1: #ff9a55; --c2: #4cc9a8; --c3: #b79bff; --bad: #ff7b83; --good: #5fd39a;
  --accent: #4a4017; } }
"""
"""CSS variables of charts and pages."""

CHART_STYLE = """
svg.chart { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", sans-serif;
  font-variant-numeric: tabular-nums; }
.chart text { fill: var(--quiet); } .chart .name { fill: var(--ink); font-size: 14px; font-weight: 600; }
.chart .key, .chart .readout { fill: var(--ink); } .chart .grid { stroke: var(--line); }
.chart .base { stroke: var(--axis); }
.chart path { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.chart .faint { stroke-width: 1; opacity: .45; } .chart circle { stroke: var(--surface); stroke-width: 1; }
.chart .s0 { stroke: var(--c0); } .chart .s1 { stroke: var(--c1); } .chart .s2 { stroke: var(--c2); } .chart
  .s3 { stroke: var(--c3); }
.chart .f0 { fill: var(--c0); } .chart .f1 { fill: var(--c1); } .chart .f2 { fill: var(--c2); } .chart .f3 {
  fill: var(--c3); }
.chart .level { stroke: var(--quiet); stroke-dasharray: 6 4; }
.chart .mark { stroke: var(--axis); stroke-dasharray: 2 3; }
.chart .mark.bad { stroke: var(--bad); }
.chart .halo { fill: var(--quiet); paint-order: stroke; stroke: var(--surface);
  stroke-width: 4px; }
.chart .sheet { fill: var(--surface); }
.chart .hit rect.area { fill: none; pointer-events: all; } .chart .hit .shown { visibility: hidden; }
.chart .hit:hover .shown { visibility: visible; } .chart .cross { stroke: var(--axis); }
@media print { .chart .hit { display: none; } }
"""
"""CSS rules for the classes of a chart."""

NUM_COLORS = 4
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 64, 42
_CHARACTER = 7.0  # width of a character at 12 px, slightly more than the mean, so that texts do not touch
_MAX_STOPS = 60


@dataclass(frozen=True)
class Series:
    name: str
    xs: Any
    """Numbers (N,): a sequence or an array."""
    ys: Any
    """Numbers (N,). A non-finite value is a gap."""
    color: int = 0
    """Number of the colour, modulo NUM_COLORS."""
    kind: Literal["line", "faint", "points"] = "line"
    """faint: thin and pale, for example for raw values behind a smoothed curve. points: dots, joined by a line."""


class Mark(NamedTuple):
    """A vertical line at x, with a text."""

    x: float
    text: str
    is_bad: bool = False


class Level(NamedTuple):
    """A horizontal reference line at y, with a text."""

    y: float
    text: str


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    marks: Sequence[Mark] = (),
    reference_lines: Sequence[Level] = (),
    width: int = 720,
    height: int = 300,
    log_y: bool = False,
    from_zero: bool = False,
    x_range: tuple[float, float] | None = None,
    y_format: Callable[[float], str] | None = None,
    standalone: bool = False,
) -> str:
    """Draw a chart as one `<svg>` element, which is also well-formed XML.

    Args:
        series: Curves, drawn in this order. They may be empty, have a single point, or have gaps.
        marks: Vertical lines, for example at the step where a run was stopped.
        reference_lines: Horizontal lines. The range of the vertical axis includes them.
        width: Width in units of the drawing, which scales to the space on the page.
        height: Height in the same units, at least 140.
        log_y: True for a logarithmic vertical axis; values that are not positive are then gaps.
        from_zero: True to start the vertical axis at 0 if no value is negative.
        x_range: Smallest range of the horizontal axis, so that several charts of a run are aligned.
        y_format: Formats values at the pointer and at the ticks. None: the default format of each.
        standalone: True to include colours, CSS rules and a background, for a separate file.

    Raises:
        ValueError: The xs and ys of a series differ in length.
    """
    curves = [_curve(s, log_y) for s in series]
    levels = [level for level in reference_lines if math.isfinite(level.y) and (level.y > 0 or not log_y)]
    shown_marks = [mark for mark in marks if math.isfinite(mark.x)]
    all_xs = np.concatenate([np.empty(0), *(c.xs[np.isfinite(c.ys)] for c in curves)])
    all_ys = np.concatenate([np.empty(0), *(c.ys[np.isfinite(c.ys)] for c in curves)])
    if not len(all_xs):
        return svg([], title, width, height, standalone=standalone)
    ends = np.concatenate([all_xs, [x for x in x_range or () if math.isfinite(x)]])
    x_axis = Axis(*widened(ends.min(), ends.max()), start=_LEFT, end=width - _RIGHT)
    bounds = np.concatenate([all_ys, [level.y for level in levels]])
    y_axis = _vertical(bounds, height, log_y, from_zero)
    parts = [
        _grid(x_axis, y_axis, width, height, y_format),
        tag("text", "step", x=width - _RIGHT, y=height - 6, text_anchor="end"),
        _marks(shown_marks, x_axis, height),
        *(_line(curve, x_axis, y_axis) for curve in curves),
        *(_level(level, y_axis, width) for level in levels),
        _legend(curves),
        _readouts(curves, x_axis, y_axis, y_format or number, width),
    ]
    return svg(parts, title, width, height, standalone=standalone)


def svg(parts: Sequence[Content], title: str, width: int, height: int, *, standalone: bool = False) -> str:
    """Return a drawing of `parts` below a title, or of the words "no data" if there are none.

    With `standalone`, it includes colours, CSS rules, a background and its size.
    """
    size = {"width": width, "height": height} if standalone else {}
    style = [tag("style", Markup(COLORS + CHART_STYLE)), tag("rect", **size, class_="sheet")] if standalone else []
    # In low drawings, the middle would be inside the title.
    nothing = tag("text", "no data", x=width / 2, y=max(height / 2, 46), text_anchor="middle")
    return tag(
        "svg",
        *style,
        tag("text", title, x=_LEFT - 44, y=20, class_="name"),
        *(parts or [nothing]),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        class_="chart",
        role="img",
        aria_label=title,
        **size,
    )


def _curve(series: Series, log_y: bool) -> Series:
    """Return the series sorted by x, as arrays, with NaN where nothing is drawn."""
    xs, ys = np.asarray(series.xs, np.float64), np.asarray(series.ys, np.float64)
    if xs.shape != ys.shape or xs.ndim != 1:
        raise ValueError(
            f"series {series.name!r} has xs of shape {xs.shape} and ys of shape {ys.shape}: expected equal (N,)"
        )
    order = np.argsort(xs, kind="stable")
    order = order[np.isfinite(xs[order])]
    xs, ys = xs[order], ys[order]
    is_drawn = np.isfinite(ys) & (ys > 0) if log_y else np.isfinite(ys)
    return replace(series, xs=xs, ys=np.where(is_drawn, ys, np.nan), color=series.color % NUM_COLORS)


def _vertical(values: Floats, height: int, log: bool, from_zero: bool) -> Axis:
    bottom, top = height - _BOTTOM, _TOP
    low, high = float(values.min()), float(values.max())
    if log:
        low, high = min(max(low, 1e-150), 1e150), min(max(high, 1e-150), 1e150)
        margin = max((high / low) ** 0.05, 1.05)
        return Axis(low / margin, high * margin, start=bottom, end=top, log=True)
    if from_zero and low >= 0:
        high = high if high > 1e-100 else 1.0
        return Axis(0.0, min(high, 1e300) * 1.06, start=bottom, end=top)
    low, high = widened(low, high)
    margin = (high - low) * 0.06
    return Axis(low - margin if low < 0 or low > margin else 0.0, high + margin, start=bottom, end=top)


def _grid(x_axis: Axis, y_axis: Axis, width: int, height: int, y_format: Callable[[float], str] | None) -> Markup:
    bottom = height - _BOTTOM
    rows = max(2, round((bottom - _TOP) / 48))
    y_ticks = (log_ticks if y_axis.log else ticks)(y_axis.low, y_axis.high, rows)
    if y_format:
        names = [y_format(v) for v in y_ticks]
    else:
        names = (log_labels if y_axis.log else tick_labels)(y_ticks)
    parts = []
    for value, name in zip(y_ticks, names, strict=True):
        y = _at(y_axis.pixel(value))
        parts.append(tag("line", x1=_LEFT, x2=width - _RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", name, x=_LEFT - 8, y=_at(float(y) + 4), text_anchor="end"))
    parts.append(tag("line", x1=_LEFT, x2=width - _RIGHT, y1=bottom, y2=bottom, class_="base"))
    is_whole = x_axis.high - x_axis.low >= 2
    x_ticks = ticks(x_axis.low, x_axis.high, max(2, (width - _LEFT) // 110), whole=is_whole)
    for value, name in zip(x_ticks, tick_labels(x_ticks), strict=True):
        x = _at(x_axis.pixel(value))
        anchor = "end" if float(x) > width - _RIGHT - _CHARACTER * len(name) / 2 else "middle"
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="base"))
        parts.append(tag("text", name, x=x, y=bottom + 18, text_anchor=anchor))
    return join(parts)


def _line(curve: Series, x_axis: Axis, y_axis: Axis) -> Markup:
    """Draw a curve as a path with gaps. Draw dots for the kind `points`, and for points between two gaps."""
    xs, ys = thin(curve.xs, curve.ys, num_buckets=int(x_axis.end - x_axis.start) // 2)
    px, py = x_axis.pixels(xs), y_axis.pixels(ys)
    is_real = np.isfinite(py)
    # True if the next or previous point is drawn. Without both, a point is a dot; without the latter, it starts a line
    after, before = np.append(is_real[1:], False), np.append(False, is_real[:-1])
    in_line = np.flatnonzero(is_real & (before | after))
    commands = [f"{'L' if before[i] else 'M'}{_at(px[i])} {_at(py[i])}" for i in in_line]
    faint = " faint" if curve.kind == "faint" else ""
    parts = [tag("path", d="".join(commands), class_=f"s{curve.color}{faint}")] if commands else []
    dotted = is_real if curve.kind == "points" else is_real & ~before & ~after
    radius = 3.5 if curve.kind == "points" and dotted.sum() <= 60 else 2.5
    parts += [
        tag("circle", cx=_at(px[i]), cy=_at(py[i]), r=radius, class_=f"f{curve.color}") for i in np.flatnonzero(dotted)
    ]
    return join(parts)


def _marks(marks: Sequence[Mark], x_axis: Axis, height: int) -> Markup:
    """Draw the marks in range. Those at one pixel share a line and label. Labels that do not fit are only tooltips."""
    columns: dict[int, list[Mark]] = {}
    for mark in sorted(marks, key=lambda m: m.x):
        if x_axis.low <= mark.x <= x_axis.high:
            columns.setdefault(round(x_axis.pixel(mark.x)), []).append(mark)
    parts = []
    free_from = x_axis.start
    ends = [*list(columns)[1:], x_axis.end + 3]
    for (x, here), end in zip(columns.items(), ends):
        name = ", ".join(dict.fromkeys(mark.text for mark in here))
        bad = " bad" if any(mark.is_bad for mark in here) else ""
        explained = tag("title", name)
        parts.append(tag("line", explained, x1=x, x2=x, y1=_TOP - 14, y2=height - _BOTTOM, class_=f"mark{bad}"))
        extent = _CHARACTER * len(name)
        side = 1 if x + 5 + extent <= end - 3 else -1 if x - 5 - extent >= free_from else 0
        if side:
            anchor = "start" if side == 1 else "end"
            parts.append(tag("text", name, x=x + 5 * side, y=_TOP - 5, text_anchor=anchor, class_="halo"))
        free_from = x + 5 + extent if side == 1 else x + 3
    return join(parts)


def _level(level: Level, y_axis: Axis, width: int) -> Markup:
    y = y_axis.pixel(level.y)
    line = tag("line", x1=_LEFT, x2=width - _RIGHT, y1=_at(y), y2=_at(y), class_="level")
    above = y - 6 if y - 18 > _TOP else y + 15
    return join([line, tag("text", level.text, x=width - _RIGHT - 4, y=_at(above), text_anchor="end", class_="halo")])


def _legend(curves: Sequence[Series]) -> Markup:
    x: float = _LEFT - 44
    parts = []
    for curve in curves if len(curves) > 1 else ():
        faint = " faint" if curve.kind == "faint" else ""
        if curve.kind == "points":
            parts.append(tag("circle", cx=x + 8, cy=36, r=3.5, class_=f"f{curve.color}"))
        else:
            parts.append(tag("path", d=f"M{_at(x)} 36h16", class_=f"s{curve.color}{faint}"))
        parts.append(tag("text", curve.name, x=_at(x + 21), y=40, class_="key"))
        x += 21 + _CHARACTER * len(curve.name) + 16
    return join(parts)


def _readouts(
    curves: Sequence[Series], x_axis: Axis, y_axis: Axis, y_format: Callable[[float], str], width: int
) -> Markup:
    """Draw vertical bands that show the values of every curve while the pointer is over them, without a script."""
    stops = _stops(curves, x_axis)
    places = [x_axis.pixel(x) for x in stops]
    edges = [x_axis.start, *((a + b) / 2 for a, b in pairwise(places)), x_axis.end]
    bottom, top = y_axis.start, y_axis.end
    parts = []
    for i, (stop, place) in enumerate(zip(stops, places, strict=True)):
        left, right = edges[i], edges[i + 1]
        words, dots = [f"step {number(int(stop) if stop == int(stop) else float(stop))}"], []
        for curve in curves:
            near = _value_near(curve, stop, x_axis, left, right)
            if near is not None:
                words.append(f"{curve.name} {y_format(near)}" if len(curves) > 1 else y_format(near))
                y = _at(y_axis.pixel(near))
                dots.append(tag("circle", cx=_at(place), cy=y, r=3, class_=f"f{curve.color} shown"))
        parts.append(
            tag(
                "g",
                tag("rect", x=_at(left), y=top, width=_at(right - left), height=bottom - top, class_="area"),
                tag("line", x1=_at(place), x2=_at(place), y1=top, y2=bottom, class_="cross shown"),
                *dots,
                tag("rect", x=0, y=27, width=width, height=18, class_="sheet shown"),
                tag("text", "  ·  ".join(words), x=_LEFT - 44, y=40, class_="readout shown"),
                class_="hit",
            )
        )
    return join(parts)


def _stops(curves: Sequence[Series], x_axis: Axis) -> list[float]:
    """Return the values of x that have a band: first those of curves with points, then others, spread evenly."""
    pointed = [c.xs[np.isfinite(c.ys)] for c in curves if c.kind == "points"]
    stops = np.unique(np.concatenate([np.empty(0), *pointed]))
    if len(stops) > _MAX_STOPS // 2:
        stops = stops[np.linspace(0, len(stops) - 1, _MAX_STOPS // 2).round().astype(int)]
    others = np.unique(np.concatenate([np.empty(0), *(c.xs[np.isfinite(c.ys)] for c in curves)]))
    wanted = np.searchsorted(others, np.linspace(x_axis.low, x_axis.high, _MAX_STOPS))
    others = others[np.unique(np.minimum(wanted, len(others) - 1))]
    spacing = 0.9 * (x_axis.end - x_axis.start) / _MAX_STOPS
    chosen, taken = stops.tolist(), x_axis.pixels(stops).tolist()
    for x, place in zip(others.tolist(), x_axis.pixels(others).tolist(), strict=True):
        if all(abs(other - place) >= spacing for other in taken):
            chosen.append(x)
            taken.append(place)
    return sorted(chosen)


def _value_near(curve: Series, x: float, x_axis: Axis, left: float, right: float) -> float | None:
    """Return the curve's value at the point nearest to `x`, or None if it is outside the pixels [left, right]."""
    is_real = np.isfinite(curve.ys)
    xs, ys = curve.xs[is_real], curve.ys[is_real]
    if not len(xs):
        return None
    i = int(np.abs(xs - x).argmin())
    return float(ys[i]) if left - 1 <= x_axis.pixel(xs[i]) <= right + 1 else None


def _at(pixel: float) -> str:
    """Format a coordinate with one decimal."""
    return text(f"{pixel:.1f}".removesuffix(".0"))
