"""Which learning rate, and which of its runs, stands for a task, and the results of a sweep as JSON, Markdown and HTML.
Torch-free."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrainkit.report.markup import row, tag
from pretrainkit.report.page import html_page
from pretrainkit.report.tables import table
from pretrainkit.sweep.plan import Cell

_LEFT_OUT = ("loss", "score", "cut_words", "cut_questions")
"""Counts and what is shown elsewhere; all is in the JSON."""
_HEAD = ("task", "learning rate", "seeds", "metrics: mean ± deviation (median)", "score")
Metrics = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Of one task, on its held-out data."""

    task: str
    lr: float
    """With the highest median of `score` over the seeds; of equal ones the smallest."""
    cell: Cell
    """The seed with the highest score at that learning rate: its model answers the test set."""
    medians: Mapping[float, float]
    """Of every learning rate."""
    mean: Mapping[str, float]
    """Of each metric over the seeds at the chosen learning rate."""
    deviation: Mapping[str, float]
    """Likewise; 0 for one seed. Of the sample: divided by the number of seeds less one."""
    median: Mapping[str, float]
    num_seeds: int


def choose(task: str, found: Mapping[Cell, Metrics]) -> Choice:
    """From the metrics of all runs of a task; there is at least one."""
    by_lr: dict[float, dict[Cell, Metrics]] = {}
    for cell, metrics in found.items():
        by_lr.setdefault(cell.lr, {})[cell] = metrics
    medians = {lr: statistics.median(one["score"] for one in runs.values()) for lr, runs in by_lr.items()}
    lr = min(medians, key=lambda lr: (-medians[lr], lr))
    runs = by_lr[lr]
    columns = {name: [one[name] for one in runs.values()] for name in next(iter(runs.values()))}
    return Choice(
        task=task,
        lr=lr,
        cell=min(runs, key=lambda cell: (-runs[cell]["score"], cell.seed)),
        medians=medians,
        mean={name: statistics.fmean(values) for name, values in columns.items()},
        deviation={name: statistics.stdev(values) if len(values) > 1 else 0.0 for name, values in columns.items()},
        median={name: statistics.median(values) for name, values in columns.items()},
        num_seeds=len(runs),
    )


def rows_of(choices: Sequence[Choice]) -> list[tuple[str, ...]]:
    """A row per task, and one for the mean of their scores."""
    rows = []
    for one in choices:
        names = [name for name in one.mean if not name.endswith(_LEFT_OUT)]
        metrics = ", ".join(
            f"{name} {one.mean[name]:.2f} ± {one.deviation[name]:.2f} ({one.median[name]:.2f})" for name in names
        )
        rows.append((one.task, f"{one.lr:g}", str(one.num_seeds), metrics, f"{one.mean['score']:.2f}"))
    return [*rows, ("mean", "", "", "", f"{mean_score(choices):.2f}")]


def mean_score(choices: Sequence[Choice]) -> float:
    """Over tasks, of the mean over seeds."""
    return sum(one.mean["score"] for one in choices) / len(choices)


def as_markdown(choices: Sequence[Choice]) -> str:
    """A table for a README."""
    lines = [_HEAD, tuple("---" for _ in _HEAD), *rows_of(choices)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def as_html(choices: Sequence[Choice]) -> str:
    """The same as a page of its own."""
    rows = [row(*cells, classes=(None, None, None, None, "number")) for cells in rows_of(choices)]
    heading = tag("h1", "Fine-tuning, held-out data")
    return html_page("Fine-tuning", [heading, tag("div", table(_HEAD, rows), class_="panel scroll long")])


def as_json(choices: Sequence[Choice]) -> dict[str, Any]:
    """For machines."""
    return {
        "score": mean_score(choices),
        "tasks": {
            one.task: {
                "peak_lr": one.lr,
                "run": one.cell.name,
                "seeds": one.num_seeds,
                "mean": dict(one.mean),
                "deviation": dict(one.deviation),
                "median": dict(one.median),
                "median_score_by_lr": {f"{lr:g}": value for lr, value in one.medians.items()},
            }
            for one in choices
        },
    }
