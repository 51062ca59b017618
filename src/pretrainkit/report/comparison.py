"""The page that compares several runs: their results, curves, settings, data and code, and samples side by side."""

import math
from collections.abc import Sequence
from pathlib import Path

from pretrainkit.config.loader import difference, flatten
from pretrainkit.errors import InputError
from pretrainkit.eval.directions import FALLS, RISES
from pretrainkit.files.manifest import write_text
from pretrainkit.report.charts import swatch
from pretrainkit.report.curves import clock, training_seconds
from pretrainkit.report.markup import Content, Markup, join, tag
from pretrainkit.report.numbers import DASH, duration, label, metric, number, short
from pretrainkit.report.page import Refresh, curves_section, html_page
from pretrainkit.report.run_folder import Run, as_number
from pretrainkit.report.run_table import named_runs, state_of
from pretrainkit.report.tables import samples_table, section, table, yaml_like

MAX_RUNS = 30
_MAX_SAMPLES = 12
_LOCAL_ENTRIES = ("command", "started", "folder", "directions", "percentages", "sources", "resumed")
"""Entries of the provenance that always differ between runs, or are shown in another section."""


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write the page that compares runs; return the file. Raises DataError if one is not a run or has no metrics, or
    `out` cannot be written, and InputError for more than `MAX_RUNS`."""
    write_text(out, render_comparison(compared_runs(folders)))
    return out


def compared_runs(folders: Sequence[Path]) -> list[Run]:
    """Read the runs of a comparison. Raises the same errors as `write_comparison`."""
    if len(folders) > MAX_RUNS:
        raise InputError(
            f"a page compares at most {MAX_RUNS} runs, and {len(folders)} are given\n"
            "  give fewer runs; to list and filter runs, use pretrainkit runs FOLDER"
        )
    return named_runs(folders)


def render_comparison(runs: Sequence[Run], refresh: Refresh | None = None) -> str:
    """Return the page of several runs; with `refresh`, a page that a server keeps up to date."""
    recipes = sorted({str(run.config.get("recipe") or "") for run in runs} - {""})
    head = tag("h1", f"{len(runs)} runs compared")
    return html_page(
        f"{len(runs)} runs compared",
        [
            tag("header", head, tag("p", " · ".join(recipes), class_="quiet")),
            _results(runs),
            curves_section(runs),
            _settings(runs),
            _origins(runs),
            _samples(runs),
            _notes(runs),
        ],
        has_charts=True,
        refresh=refresh,
    )


def _heads(runs: Sequence[Run], first: str = "") -> list[Content]:
    return [first, *(join([swatch(i), run.name]) for i, run in enumerate(runs))]


def _wide_table(heads: Sequence[Content], rows: Sequence[Sequence[Content]]) -> Markup:
    """Return a table with a column for each run, which scrolls sideways where there are many."""
    cells = [tag("tr", *(tag("td", cell, class_="path" if i == 0 else None) for i, cell in enumerate(r))) for r in rows]
    head = tag("thead", tag("tr", *(tag("th", name) for name in heads)))
    return tag("div", tag("table", head, tag("tbody", *cells), class_="compared"), class_="panel scroll long")


def _results(runs: Sequence[Run]) -> Markup:
    """List state, steps, work and time of each run, then its last and best metrics with differences to the first."""
    rows: list[list[Content]] = [["state", *map(state_of, runs)]]
    rows.append(["preset", *(run.preset or DASH for run in runs)])
    rows.append(["steps", *(_progress(run) for run in runs)])
    for unit in ("tokens", "FLOPs"):
        ends = [values[-1] if (values := clock(run).get(unit)) is not None else None for run in runs]
        if any(ends):
            rows.append([unit, *(DASH if end is None else short(float(end)) for end in ends)])
    rows.append(["training time", *(DASH if (s := training_seconds(run)) is None else duration(s) for run in runs)])
    sizes = [as_number(run.summary.get("parameters")) for run in runs]
    if any(sizes):
        rows.append(["parameters", *(DASH if size is None else short(size) for size in sizes)])
    keys = list(dict.fromkeys(key for run in runs for key in run.held_out))
    rows += [_metric_row(key, runs) for key in keys]
    if not keys:
        finals = [run.metrics.rows[-1].get("loss") for run in runs]
        rows.append(["training loss, last", *(DASH if value is None else number(value) for value in finals)])
    note = (
        "Metrics are on held-out data: the last value, its difference from the first run of the same recipe, and the "
        "best value on the way."
    )
    return section("Results", tag("p", note, class_="quiet small"), _wide_table(_heads(runs), rows))


def _progress(run: Run) -> str:
    last, steps = int(run.metrics.rows[-1]["step"]), as_number(run.config.get("num_steps"))
    return number(last) if steps is None or last >= steps else f"{number(last)} of {number(int(steps))}"


def _metric_row(key: str, runs: Sequence[Run]) -> list[Content]:
    """Show the last value of each run, its difference from the first run of the same recipe, and the best value
    during training. The value is bold if no other run of the recipe has one as good."""
    cells: list[Content] = [label(key)]
    for run in runs:
        value = run.held_out.get(key)
        if value is None:
            cells.append(DASH)
            continue
        peers = [other for other in runs if other.config.get("recipe") == run.config.get("recipe")]
        peers = [peer for peer in peers if key in peer.held_out]
        values = [peer.held_out[key] for peer in peers]
        first, shown = values[0], metric(key, value, run.percentages)
        sign = {RISES: 1, FALLS: -1}.get(run.direction(key) or "", 0)
        others = [peer.held_out[key] for peer in peers if peer is not run]
        is_best = sign and math.isfinite(value)
        is_best = is_best and not any(
            sign * other >= sign * value or metric(key, other, run.percentages) == shown for other in others
        )
        asides = []
        if run is not peers[0] and math.isfinite(value - first):
            asides.append(f"{'+' if value >= first else '−'}{metric(key, abs(value - first), run.percentages)}")
        steps, curve = run.evaluations.curve(key)
        if sign and len(curve) > 1:
            at = max(range(len(curve)), key=lambda i: (sign * curve[i], -steps[i]))
            if sign * curve[at] > sign * value:
                asides.append(f"best {metric(key, float(curve[at]), run.percentages)} at step {number(int(steps[at]))}")
        bold = tag("b", shown, class_="good") if is_best and others else shown
        cells.append(join([bold, *(tag("div", aside, class_="quiet small") for aside in asides)]))
    return cells


def _settings(runs: Sequence[Run]) -> Markup:
    differences = difference([run.config for run in runs])
    if not differences:
        return section("Settings", tag("p", "All runs have the same config.", class_="quiet"))
    rows = [[tag("code", path), *(tag("code", yaml_like(v)) for v in values)] for path, values in differences.items()]
    num_equal = len({path for run in runs for path in flatten(run.config)}) - len(rows)
    note = tag("p", f"Settings that differ; {num_equal} others are equal.", class_="quiet small")
    return section("Settings", note, _wide_table(_heads(runs, "setting"), rows))


def _origins(runs: Sequence[Run]) -> Markup | None:
    """List differences in data, code and machine: everything in the provenance except the config."""
    facts = [{k: v for k, v in run.provenance.items() if k not in _LOCAL_ENTRIES} for run in runs]
    differences = difference(facts)
    if not any(facts):
        return None
    if not differences:
        return section("Data, code and machine", tag("p", "The same data, code and machine.", class_="quiet"))
    rows = [[tag("code", path), *(tag("code", yaml_like(v)) for v in values)] for path, values in differences.items()]
    return section("Data, code and machine", _wide_table(_heads(runs, "recorded"), rows))


def _samples(runs: Sequence[Run]) -> Markup | None:
    """Show the last samples of the runs below each other: common columns once, then the answers of each run."""
    shared = min((len(run.samples) for run in runs), default=0)
    parts = []
    for place in range(min(shared, _MAX_SAMPLES)):
        samples = [run.samples[place] for run in runs]
        equal = {key: value for key, value in samples[0].items() if all(s.get(key) == value for s in samples[1:])}
        if not equal:
            continue  # different examples cannot be compared
        own = list(dict.fromkeys(key for sample in samples for key in sample if key not in equal))
        named = list(zip(_heads(runs)[1:], samples, strict=True))
        parts.append(tag("div", samples_table(list(equal), own, "run", named), class_="panel scroll"))
    if not parts and any(run.samples for run in runs):
        return section("Samples", tag("p", "The runs show samples of different examples.", class_="quiet"))
    return section("Samples", *parts) if parts else None


def _notes(runs: Sequence[Run]) -> Markup | None:
    rows = [tag("tr", tag("td", run.name, class_="path"), tag("td", note)) for run in runs for note in run.notes]
    return section("Notes", tag("div", table(("run", "note"), rows), class_="panel")) if rows else None
