"""Interactive charts in a page: uPlot (`uplot/`, MIT licence) draws them in the browser, from data in the page.

A page with charts runs two scripts, uPlot and `charts.js`, which are part of it. Its content security policy names
their hashes, so that it runs no other script. It loads no other files.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from pretrainkit.report.curves import Chart, clock, thin
from pretrainkit.report.markup import Content, Markup, join, tag
from pretrainkit.report.run_folder import Floats, Run

_NUM_BUCKETS = 400
"""Number of columns to which a curve is thinned on the page of one run. Ten runs together have twice as many."""
_NUM_CLOCK = 200
_COLORS = (
    ("#2563c9", "#6ea8fe"),
    ("#d9560b", "#ff9a55"),
    ("#0d8a6f", "#4cc9a8"),
    ("#7a4fd0", "#b79bff"),
    ("#c2255c", "#ff8fb8"),
    ("#8a6d00", "#d9c04a"),
    ("#0b83a5", "#5fd4ee"),
    ("#5a6472", "#a6b0c0"),
    ("#4d7c0f", "#a3d85f"),
    ("#92400e", "#e0a46c"),
)
"""Colours of curves on a light and on a dark page."""
_LIGHT, _DARK = ("".join(f" --c{i}: {pair[theme]};" for i, pair in enumerate(_COLORS)) for theme in (0, 1))
COLORS = f"""
:root {{ --surface: #ffffff; --ink: #1c2330; --quiet: #5d6778; --line: #e3e7ee; --axis: #aab3c2; --bad: #c62f3b;
  --good: #16794c; --accent: #fff3c9;{_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ --surface: #161b24; --ink: #e6eaf2; --quiet: #9aa5b8; --line: #2a3240;
  --axis: #566176; --bad: #ff7b83; --good: #5fd39a; --accent: #4a4017;{_DARK} }} }}
"""
"""CSS variables of charts and pages."""
CHART_STYLE = """
.plot { height: 230px; position: relative; } .plot.large { height: 360px; }
.plot .u-select { background: var(--quiet); opacity: .18; } .plot .u-over { cursor: crosshair; }
.tip { position: absolute; z-index: 5; pointer-events: none; background: var(--surface); border: 1px solid var(--axis);
  border-radius: 6px; padding: 4px 8px; font-size: 12.5px; line-height: 1.45; white-space: nowrap; max-width: 90%; }
.tip div { overflow: hidden; text-overflow: ellipsis; } .tip .at { color: var(--quiet); }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
.controls { display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: center; font-size: 13.5px; }
.controls button, .controls select { font: inherit; color: inherit; background: var(--page);
  border: 1px solid var(--line); border-radius: 7px; padding: 2px 9px; }
.controls button { cursor: pointer; }
.controls button[aria-pressed=false] { opacity: .4; text-decoration: line-through; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 12.5px; color: var(--quiet); margin: 0 0 4px; }
"""
"""CSS rules of charts. Colours are variables, which the page defines for light and dark."""


@cache
def scripts() -> tuple[str, ...]:
    """Return the scripts of a page with charts: uPlot, then ours."""
    folder = files("pretrainkit.report")
    return tuple((folder / name).read_text("utf-8") for name in ("uplot/uPlot.iife.min.js", "charts.js"))


@cache
def style() -> str:
    """Return the style sheet of charts."""
    return (files("pretrainkit.report") / "uplot/uPlot.min.css").read_text("utf-8") + CHART_STYLE


@cache
def script_policy() -> str:
    """Return the sources of the content security policy that allow exactly `scripts`."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts())
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def chart_panels(runs: Sequence[Run], large: Sequence[Chart], small: Sequence[Chart]) -> list[Markup]:
    """Return the controls, the charts and their data. Raises ValueError if a series is not a curve."""
    charts = [*large, *small]
    if not charts:
        return []
    # Several runs have buttons with their colours, which are the legend of all charts.
    has_legend = len(runs) == 1
    panels = [_panel(number, chart, number < len(large), has_legend) for number, chart in enumerate(charts)]
    noscript = tag("noscript", tag("p", "The curves are drawn by the browser: allow this page to run its scripts."))
    return [
        noscript,
        _controls(runs, charts),
        *panels[: len(large)],
        tag("div", *panels[len(large) :], class_="charts"),
        tag("script", Markup(_data(runs, charts)), type="application/json", id="curves"),
    ]


def _panel(number: int, chart: Chart, is_large: bool, has_legend: bool) -> Markup:
    names = dict.fromkeys((line.name, line.color, line.kind == "faint") for line in chart.series)
    keys = [tag("span", swatch(color, is_faint=is_faint), name) for name, color, is_faint in names]
    legend = tag("div", *keys, class_="legend") if has_legend and len(keys) > 1 else None
    plot = tag("div", class_="plot large" if is_large else "plot", data_chart=number)
    return tag("div", tag("h3", chart.title), legend, plot, class_="panel")


def swatch(color: int, *, is_faint: bool = False) -> Markup:
    """Return a square of the colour of a curve."""
    pale = "; opacity: .4" if is_faint else ""
    return tag("span", class_="swatch", style=f"background: var(--c{color % len(_COLORS)}){pale}")


def _controls(runs: Sequence[Run], charts: Sequence[Chart]) -> Markup:
    units = [unit for unit in clock(runs[0]) if all(unit in clock(run) for run in runs)]
    options = [tag("option", unit, value=unit) for unit in units]
    parts: list[Content] = [
        tag("label", "over ", tag("select", *options, id="x-unit")),
        tag("label", tag("input", type="checkbox", id="log-scale"), " log scale"),
    ]
    if any(line.kind == "faint" for chart in charts for line in chart.series):
        parts.append(tag("label", tag("input", type="checkbox", id="raw-values"), " values before smoothing"))
    if len(runs) > 1:
        chips = [
            tag("button", swatch(number), run.name, type="button", data_run=number) for number, run in enumerate(runs)
        ]
        parts.append(tag("span", join(chips, " ")))
    parts.append(tag("span", "Drag to zoom in, double-click to zoom out.", class_="quiet small"))
    return tag("div", *parts, class_="panel controls")


def _data(runs: Sequence[Run], charts: Sequence[Chart]) -> str:
    """Return the curves as JSON that is valid inside of a page: without NaN, and without any markup."""
    num_buckets = _NUM_BUCKETS if len(runs) == 1 else max(20, 2 * _NUM_BUCKETS // max(len(runs), 4))
    content = {
        "runs": [
            {"name": run.name, "clock": {k: _numbers(_sampled(v)) for k, v in clock(run).items()}} for run in runs
        ],
        "charts": [_chart_data(chart, num_buckets) for chart in charts],
    }
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _chart_data(chart: Chart, num_buckets: int) -> dict[str, Any]:
    lines: list[dict[str, Any]] = []
    for line in chart.series:
        if line.xs.shape != line.ys.shape or line.xs.ndim != 1:
            raise ValueError(f"series {line.name!r} has xs of shape {line.xs.shape} and ys of shape {line.ys.shape}")
        xs, ys = thin(line.xs, line.ys, num_buckets)
        own = {"name": line.name, "run": line.run, "color": line.color, "kind": line.kind}
        lines.append(own | {"x": _numbers(xs), "y": _numbers(ys)})
    starts = [line["x"][0] for line in lines if line["x"]]
    ends = [line["x"][-1] for line in lines if line["x"]]
    begins_late = bool(starts) and not 0 <= min(starts) <= 0.1 * max(ends)
    return {
        "key": chart.key,
        "series": lines,
        "levels": [{"y": level.y, "text": level.text} for level in chart.levels if np.isfinite(level.y)],
        "marks": [
            {"run": mark.run, "x": mark.x, "text": mark.text, "bad": mark.is_bad}
            for mark in chart.marks
            if np.isfinite(mark.x)
        ],
        "log": chart.log_y,
        "zero": chart.from_zero,
        "share": chart.is_share,
        "start": min(starts) if begins_late else 0,
    }


def _sampled(values: Floats) -> Floats:
    places = np.linspace(0, len(values) - 1, min(len(values), _NUM_CLOCK)).round().astype(int)
    return values[places]


def _numbers(values: Floats) -> list[float | int | None]:
    """Round to six digits; whole numbers stay exact, and non-finite ones become None."""
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | int | None:
    if not np.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 2**53 else float(f"{value:.6g}")
