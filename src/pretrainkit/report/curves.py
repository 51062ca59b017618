"""Curves of one or several runs: the charts of a page, and their points."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, repeat
from typing import Literal, NamedTuple

import numpy as np

from pretrainkit.report.numbers import is_share, label, metric
from pretrainkit.report.run_folder import Floats, Run, as_number

NUM_COLORS = 10
MAX_CARDS = 12
"""Number of main results at the top of the page of a run; those on held-out data come first."""
_NOT_CURVES = frozenset({"step", "seconds", "time", "epoch", "examples", "tokens"})
_ORDER = (
    *("lr", "grad_norm", "examples_per_second", "tokens_per_second", "seconds_per_step", "data_wait_share"),
    *("data_wait", "padding_share", "padding", "mfu", "flops_per_second"),
)
_COUNTS = "target_tokens/"
"""Prefix of the names of counts of single tasks."""
_FAMILIES = {
    "grad_norm/": "Gradient norm by block",
    "update_ratio/": "Update-to-weight ratio by block",
    "activation_max/": "Largest activation by block",
    "lr/": "Learning rate by its factor",
}
"""Prefixes of metrics that share a chart, a line each, on the page of a single run."""
_EMA = "ema_"
_SHOWN_EVENTS = ("stopped", "resumed", "skipped", "spike")
_BAD_EVENTS = ("skipped", "spike")
_LOG_RATIO = 20.0
"""A gradient norm with peaks this many times its median is drawn on a log axis."""
_MIN_SMOOTHED = 20
"""Curves with fewer points are not smoothed."""


class Series(NamedTuple):
    """One line of a chart."""

    name: str
    run: int
    """Number of the run on the page."""
    xs: Floats
    """Steps, ascending."""
    ys: Floats
    """Values of the same length; a non-finite value is a gap."""
    color: int
    kind: Literal["line", "faint", "points"] = "line"
    """faint: thin and pale, for raw values below a smoothed curve. points: dots with a line through them."""


class Mark(NamedTuple):
    """A vertical line at a step of a run."""

    run: int
    x: float
    text: str
    is_bad: bool = False


class Level(NamedTuple):
    """A horizontal reference line."""

    y: float
    text: str


@dataclass(frozen=True)
class Chart:
    """One chart, which may show several runs."""

    key: str
    """Name of the metric, followed by " held-out" or " training" if the page has a chart for each."""
    title: str
    series: list[Series]
    levels: Sequence[Level] = ()
    marks: Sequence[Mark] = ()
    log_y: bool = False
    from_zero: bool = False
    is_share: bool = False


def loss_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the losses in order of importance: first those with a reference line, then the training loss."""
    keys = [key for key in _keys(runs, "metrics", "evaluations") if _is_loss(key)]
    references = [reference_levels(run) for run in runs]
    keys.sort(key=lambda key: (not any(key in levels for levels in references), key != "loss"))
    if "loss" in keys and len(keys) == 2 and all(_is_total_of(run, keys[1 - keys.index("loss")]) for run in runs):
        keys.remove("loss")
    return _charts(runs, keys)


def other_charts(runs: Sequence[Run]) -> list[Chart]:
    """Return charts of all other logged or evaluated metrics, except counters that only follow the steps or stay 0."""
    keys = [key for key in _keys(runs, "evaluations", "metrics") if not _is_loss(key)]
    keys = [key for key in keys if key not in _NOT_CURVES and not key.startswith((_COUNTS, *_FAMILIES))]
    logs = [log for run in runs for log in (run.metrics, run.evaluations)]
    keys = [key for key in keys if any(log.curve(key)[1].any() for log in logs)]
    evaluated = {key for run in runs for key in run.evaluations.keys}
    place = {key: i for i, key in enumerate(_ORDER)}
    keys.sort(key=lambda key: (key not in evaluated, place.get(key, len(_ORDER))))
    families = [_family(runs[0], prefix) for prefix in _FAMILIES] if len(runs) == 1 else []
    return _charts(runs, keys) + [chart for chart in families if chart.series]


def _family(run: Run, prefix: str) -> Chart:
    members = [key for key in run.metrics.keys if key.startswith(prefix)]
    curves = [(key.removeprefix(prefix), *run.metrics.curve(key)) for key in members]
    series = [Series(name, 0, xs, ys, i % NUM_COLORS) for i, (name, xs, ys) in enumerate(curves)]
    return replace(_chart(prefix, prefix, _FAMILIES[prefix], [run], series, ()), log_y=prefix != "lr/")


def reference_levels(run: Run) -> dict[str, tuple[Level, ...]]:
    """Return the reference values of each metric, from `summary.json`.

    `unigram_loss` and `uniform_loss` belong to the language-modelling loss; `references` may hold
    {metric: {text: value}} for other metrics.
    """
    levels_by_metric: defaultdict[str, tuple[Level, ...]] = defaultdict(tuple)
    for name, words in (("unigram_loss", "guessing by frequency"), ("uniform_loss", "all words equal")):
        level = as_number(run.summary.get(name))
        if level is not None:
            term = next((k for k in (*run.metrics.keys, *run.evaluations.keys) if k.endswith("lm_loss")), "loss")
            levels_by_metric[term] += (Level(level, f"{words} {metric(term, level, run.percentages)}"),)
    references = run.summary.get("references")
    for key, levels in references.items() if isinstance(references, dict) else ():
        for name, value in levels.items() if isinstance(levels, dict) else ():
            y = as_number(value)
            if y is not None:
                levels_by_metric[str(key)] += (Level(y, f"{name} {metric(str(key), y, run.percentages)}"),)
    return dict(levels_by_metric)


def clock(run: Run) -> dict[str, Floats]:
    """Return the logged steps, and the tokens, FLOPs and hours of training until each of them, if the log has them. All
    arrays are float64 (N,) and begin with a zero before the first logged interval."""
    steps = np.array([row["step"] for row in run.metrics.rows], np.float64)
    # The first line covers as many steps as the second; a run that starts at step 0 thus begins at zero.
    first = max(0.0, 2 * steps[0] - steps[1]) if len(steps) > 1 else 0.0
    steps = np.concatenate([[first], steps])
    units = {"step": steps}
    pace = _values(run, "seconds_per_step")
    if pace is None:
        return units
    seconds = np.diff(steps) * pace
    for name, rate in (
        ("tokens", _values(run, "tokens_per_second")),
        ("FLOPs", _values(run, "flops_per_second")),
        ("hours", np.full(len(seconds), 1 / 3600)),
    ):
        if rate is not None:
            units[name] = np.concatenate([[0.0], np.cumsum(seconds * rate)])
    return units


def training_seconds(run: Run) -> float | None:
    """Return the time of training from the events, or the sum over the logged steps if that is more, for example for a
    run that has not ended. None if neither is known."""
    hours = clock(run).get("hours")
    known = [run.trained_seconds, None if hours is None else 3600 * float(hours[-1])]
    return max((seconds for seconds in known if seconds is not None), default=None)


def _values(run: Run, key: str) -> Floats | None:
    """Return a metric at every logged step, non-finite values as 0. None if a step lacks it, or all values are 0."""
    values = [row.get(key) for row in run.metrics.rows]
    known = [value for value in values if value is not None]
    return np.nan_to_num(np.array(known), posinf=0, neginf=0) if len(known) == len(values) and any(known) else None


def _keys(runs: Sequence[Run], *logs: str) -> list[str]:
    """Return all keys once, without metrics of averaged weights that are drawn in the chart of the plain metric."""
    keys = dict.fromkeys(key for log in logs for run in runs for key in getattr(run, log).keys)
    return [key for key in keys if not (key.startswith(_EMA) and key.removeprefix(_EMA) in keys)]


def _is_loss(key: str) -> bool:
    return key == "loss" or key.endswith("_loss") or key.startswith("loss/")


def _is_total_of(run: Run, key: str) -> bool:
    """True if the total loss is the single term `key`, so that its chart would be the same."""
    pairs = [(row["loss"], row[key]) for row in run.metrics.rows if "loss" in row and key in row]
    return bool(pairs) and all(math.isclose(a, b, rel_tol=1e-6) for a, b in pairs if math.isfinite(a))


def _charts(runs: Sequence[Run], keys: Sequence[str]) -> list[Chart]:
    """Return a chart for each metric of a run; for several runs, one of held-out and one of training values each. A
    metric that was evaluated only once has none if a card shows it."""
    if len(runs) == 1:
        in_cards = [key for key in runs[0].held_out if not key.startswith(_EMA)][:MAX_CARDS]
        by_key = {key: _chart_of_run(runs[0], key) for key in keys}
        return [
            chart
            for key, chart in by_key.items()
            if key not in in_cards or any(len(line.xs) > 1 or line.kind != "points" for line in chart.series)
        ]
    held_out = [(key, "held-out", [*chain(*map(_held_out, runs, repeat(key), count()))]) for key in keys]
    training = [(key, "training", [*chain(*map(_training, runs, repeat(key), count()))]) for key in keys]
    charts = []
    for key, kind, lines in (*held_out, *training):
        # The table of results has the values of runs that were evaluated once.
        if any(len(line.xs) > 1 or kind == "training" for line in lines):
            levels = dict.fromkeys(level for run in runs for level in reference_levels(run).get(key, ()))
            title = f"{_title(key)}, {kind}" if kind == "held-out" or _is_loss(key) else _title(key)
            charts.append(_chart(f"{key} {kind}", key, title, runs, lines, tuple(levels)))
    return charts


def _chart(
    name: str, key: str, title: str, runs: Sequence[Run], series: list[Series], levels: Sequence[Level]
) -> Chart:
    marks = [
        Mark(i, event.step, event.event, event.event in _BAD_EVENTS)
        for i, run in enumerate(runs)
        for event in run.events
        if event.event in _SHOWN_EVENTS
    ]
    log_y = key == "grad_norm" and any(_has_peaks(line.ys) for line in series)
    marks.sort(key=lambda mark: mark.x)
    shown = {line.run for line in series}
    shares = all(is_share(key, run.percentages) for number, run in enumerate(runs) if number in shown)
    return Chart(name, title, series, levels, marks, log_y, not _is_loss(key), shares)


def _chart_of_run(run: Run, key: str) -> Chart:
    xs, ys = run.metrics.curve(key)
    series: list[Series] = []
    if len(xs) >= _MIN_SMOOTHED and key != "lr":
        series.append(Series("training", 0, xs, ys, 0, "faint"))
        series.append(Series("training, smoothed", 0, xs, _smoothed(xs, ys, _has_peaks(ys)), 0))
    elif len(xs):
        series.append(Series("training", 0, xs, ys, 0))
    for name, prefix, color in (("held-out", "", 1), ("held-out, averaged weights", _EMA, 2)):
        xs, ys = run.evaluations.curve(prefix + key)
        if len(xs):
            series.append(Series(name, 0, xs, ys, color, "points"))
    return _chart(key, key, _title(key), [run], series, reference_levels(run).get(key, ()))


def _held_out(run: Run, key: str, number: int) -> list[Series]:
    xs, ys = run.evaluations.curve(key)
    return [Series(run.name, number, xs, ys, number % NUM_COLORS, "points")] if len(xs) else []


def _training(run: Run, key: str, number: int) -> list[Series]:
    xs, ys = run.metrics.curve(key)
    color = number % NUM_COLORS
    if len(xs) < _MIN_SMOOTHED or key == "lr":
        return [Series(run.name, number, xs, ys, color)] if len(xs) else []
    raw = Series(f"{run.name}, before smoothing", number, xs, ys, color, "faint")
    return [raw, Series(run.name, number, xs, _smoothed(xs, ys, _has_peaks(ys)), color)]


def _title(key: str) -> str:
    name = label(key)
    return name if "/" in key else name[:1].upper() + name[1:]


def _has_peaks(ys: Floats) -> bool:
    positive = ys[np.isfinite(ys) & (ys > 0)]
    return len(positive) > 0 and bool(positive.max() / _LOG_RATIO > np.median(positive))


def _smoothed(xs: Floats, ys: Floats, log: bool) -> Floats:
    """Smooth twice over a twentieth of the run; with `log`, smooth logarithms, so that peaks count less."""
    num_points = max(7, len(xs) // 20)
    values = np.log(np.where(ys > 0, ys, np.nan)) if log else ys
    values = smooth(xs, smooth(xs, values, num_points), num_points)
    return np.exp(values) if log else values


def thin(xs: Floats, ys: Floats, num_buckets: int) -> tuple[Floats, Floats]:
    """Return the points that a line over `num_buckets` columns needs: first, last, lowest and highest of each column.

    Points with a non-finite x or y are gaps; consecutive gaps become one point with y = NaN.
    (Jugel et al. 2014, "M4: a visualization-oriented time series data aggregation".)

    Args:
        xs: float64 (N,), not decreasing where finite.

    Returns:
        At most 4 points per bucket and gap, in order; all points if N is not greater.
    """
    is_real = np.isfinite(xs) & np.isfinite(ys)
    ys = np.where(is_real, ys, np.nan)
    keep = is_real.copy()
    keep[1:] |= ~is_real[1:] & is_real[:-1]  # the first point of each gap
    if keep.sum() > 4 * num_buckets and is_real.any():
        low, high = xs[is_real].min(), xs[is_real].max()
        width = (high / 2 - low / 2) or 1.0
        with np.errstate(invalid="ignore"):
            share = np.where(is_real, (xs / 2 - low / 2) / width, 0.0)
        bucket = np.minimum((share * num_buckets).astype(np.int64), num_buckets - 1)
        run = np.cumsum(np.diff(is_real, prepend=is_real[:1]))  # gaps end a column as its border does
        edges = np.flatnonzero(np.diff(bucket, prepend=-1) | np.diff(run, prepend=-1))
        chosen = np.zeros(len(xs), bool)
        for start, stop in zip(edges, [*edges[1:], len(xs)], strict=True):
            if is_real[start]:
                column = ys[start:stop]
                chosen[[start, stop - 1, start + int(column.argmin()), start + int(column.argmax())]] = True
            elif keep[start]:
                chosen[start] = True
        keep = chosen
    return xs[keep], ys[keep]


def smooth(xs: Floats, ys: Floats, num_points: int) -> Floats:
    """Fit a straight line to the `num_points` points around each point and return its values, without lag at the ends.

    Args:
        xs: float64 (N,), increasing.
        ys: float64 (N,); non-finite values are ignored and NaN in the result.
        num_points: Width of the window, which is shifted to one side at the ends.
    """
    is_real = np.isfinite(ys) & np.isfinite(xs)
    result = np.full(len(ys), np.nan)
    x, y = xs[is_real], ys[is_real]
    if not len(x):
        return result
    x = (x - x[0]) / max(x[-1] - x[0], 1.0)
    centre = y.mean()
    sums = np.cumsum([np.ones_like(x), x, x * x, y - centre, x * (y - centre)], axis=1)
    sums = np.concatenate([np.zeros((5, 1)), sums], axis=1)
    index = np.arange(len(x))
    num_points = min(max(num_points, 1), len(x))
    start = np.clip(index - num_points // 2, 0, len(x) - num_points)
    # Sums over each window, as differences of running sums: they are all that a least-squares fit of y = a + b x needs.
    n, sx, sxx, sy, sxy = sums[:, start + num_points] - sums[:, start]
    spread = sxx - sx * sx / n
    slope = np.where(spread > 1e-12 * n, (sxy - sx * sy / n) / np.maximum(spread, 1e-300), 0.0)
    result[is_real] = centre + sy / n + slope * (x - sx / n)
    return result
