"""The curves of a run as charts, and its main curve as a file."""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file
from pretrainkit.report.axis import Floats, smooth
from pretrainkit.report.chart import Level, Mark, Series, line_chart
from pretrainkit.report.numbers import is_share, label, metric, percent
from pretrainkit.report.run_folder import Run, as_number, read_run

_NOT_CURVES = frozenset({"step", "seconds", "time", "epoch", "examples", "tokens"})
_ORDER = (
    *("lr", "grad_norm", "examples_per_second", "tokens_per_second", "seconds_per_step", "data_wait_share"),
    *("data_wait", "padding_share", "padding", "mfu", "flops_per_second"),
)
_COUNTS = "target_tokens/"
"""Prefix of the names of counts of single tasks."""
_EMA = "ema_"
_SHOWN_EVENTS = ("stopped", "resumed", "skipped")
_LOG_RATIO = 20.0  # a gradient norm with peaks this many times its median is drawn on a log axis


class Curve(NamedTuple):
    """One chart of a run, which can be drawn at any size."""

    key: str
    draw: partial[str]
    """`line_chart` of its series; takes `width`, `height` and `standalone`."""


def loss_curves(run: Run) -> list[Curve]:
    """Return the losses in order of importance: first those with a reference line, then the training loss."""
    keys = [key for key in _drawn_keys(run.metrics.keys, run.evaluations.keys) if _is_loss(key)]
    references = reference_levels(run)
    keys.sort(key=lambda key: (key not in references, key != "loss"))
    if "loss" in keys and len(keys) == 2 and "loss" in run.metrics.keys:
        first, second = keys
        pairs = [(row[first], row[second]) for row in run.metrics.rows if first in row and second in row]
        if pairs and all(math.isclose(a, b, rel_tol=1e-6) for a, b in pairs if math.isfinite(a)):
            keys.remove("loss")  # a single term of scale 1: the total says nothing more
    return [_curve(run, key, references.get(key, ())) for key in keys]


def other_curves(run: Run) -> list[Curve]:
    """Return all other logged or evaluated metrics, except counters that only follow the steps."""
    keys = [key for key in _drawn_keys(run.evaluations.keys, run.metrics.keys) if not _is_loss(key)]
    keys = [key for key in keys if key not in _NOT_CURVES and not key.startswith(_COUNTS)]
    place = {key: i for i, key in enumerate(_ORDER)}
    keys.sort(key=lambda key: (0 if key in run.evaluations.keys else 1, place.get(key, len(_ORDER))))
    references = reference_levels(run)
    return [_curve(run, key, references.get(key, ())) for key in keys]


def reference_levels(run: Run) -> dict[str, tuple[Level, ...]]:
    """Return the reference values of each metric, from `summary.json`.

    `unigram_loss` and `uniform_loss` belong to the language-modelling loss; `references` may hold
    {metric: {text: value}} for other metrics.
    """
    levels_by_metric: defaultdict[str, tuple[Level, ...]] = defaultdict(tuple)
    for name, words in (("unigram_loss", "unigram plateau"), ("uniform_loss", "all words equal")):
        level = as_number(run.summary.get(name))
        if level is not None:
            term = next((k for k in (*run.metrics.keys, *run.evaluations.keys) if k.endswith("lm_loss")), "loss")
            levels_by_metric[term] += (Level(level, f"{words} {metric(term, level)}"),)
    references = run.summary.get("references")
    for key, levels in references.items() if isinstance(references, dict) else ():
        for name, value in levels.items() if isinstance(levels, dict) else ():
            y = as_number(value)
            if y is not None:
                levels_by_metric[str(key)] += (Level(y, f"{name} {metric(str(key), y)}"),)
    return dict(levels_by_metric)


def write_curve(run_folder: Path, out: Path) -> Path:
    """Draw the main loss curve of a run as an SVG file, for example for a README. Raises DataError if the run does not
    exist or has no loss, or `out` cannot be written."""
    curves = loss_curves(read_run(run_folder))
    if not curves:
        raise DataError(
            f"{run_folder / 'metrics.jsonl'} has no loss to draw\n  a curve needs 'loss' or a term ending in '_loss'"
        )
    with atomic_file(out) as file:
        file.write(curves[0].draw(width=860, height=380, standalone=True).encode() + b"\n")
    return out


def _drawn_keys(*groups: list[str]) -> list[str]:
    """Return all keys once, without metrics of averaged weights that are drawn in the chart of the plain metric."""
    keys = dict.fromkeys(key for group in groups for key in group)
    return [key for key in keys if not (key.startswith(_EMA) and key.removeprefix(_EMA) in keys)]


def _is_loss(key: str) -> bool:
    return key == "loss" or key.endswith("_loss") or key.startswith("loss/")


def _curve(run: Run, key: str, levels: Sequence[Level]) -> Curve:
    xs, ys = run.metrics.curve(key)
    positive = ys[np.isfinite(ys) & (ys > 0)]
    log_y = key == "grad_norm" and len(positive) > 0 and bool(positive.max() / _LOG_RATIO > np.median(positive))
    eval_xs, eval_ys = run.evaluations.curve(key)
    series: list[Series] = []
    title = label(key)
    if len(xs) >= 20 and key != "lr":
        series.append(Series("training", xs, ys, 0, "faint"))
        series.append(Series("smoothed", xs, _smoothed(xs, ys, log_y), 0))
    elif len(xs):
        series.append(Series("training", xs, ys, 0))
    if len(eval_xs):
        series.append(Series("held-out", eval_xs, eval_ys, 1, "points"))
    ema_xs, ema_ys = run.evaluations.curve(_EMA + key)
    if len(ema_xs):
        series.append(Series("held-out, averaged weights", ema_xs, ema_ys, 2, "points"))
    # All charts show the same steps: from 0, unless the log begins much later.
    steps = [row["step"] for row in (*run.metrics.rows, *run.evaluations.rows)]
    draw = partial(
        line_chart,
        series,
        title=title if "/" in key else title[:1].upper() + title[1:],
        marks=[Mark(e.step, e.event, is_bad=e.event == "skipped") for e in run.events if e.event in _SHOWN_EVENTS],
        reference_lines=levels,
        log_y=log_y,
        from_zero=not _is_loss(key),
        x_range=(0.0 if 0 <= min(steps) <= 0.1 * max(steps) else min(steps), max(steps)),
        y_format=percent if is_share(key) else None,
    )
    return Curve(key, draw)


def _smoothed(xs: Floats, ys: Floats, log: bool) -> Floats:
    """Smooth twice over a twentieth of the run; for a log axis, smooth logarithms, so that peaks count less."""
    num_points = max(7, len(xs) // 20)
    values = np.log(np.where(ys > 0, ys, np.nan)) if log else ys
    values = smooth(xs, smooth(xs, values, num_points), num_points)
    return np.exp(values) if log else values
