"""Choice of the learning rate and the run of each task, and the results of a sweep as JSON, Markdown and HTML.
Imports no torch."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrainkit.report.markup import row, tag
from pretrainkit.report.page import html_page
from pretrainkit.report.tables import table
from pretrainkit.sweep.plan import Cell

_LEFT_OUT = ("loss", "score", "cut_words", "cut_questions")
"""Suffixes of metrics that the tables omit. The JSON has all metrics."""
_HEAD = ("task", "learning rate", "seeds", "metrics: mean ± deviation (median)", "score")
Metrics = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Chosen learning rate and run of one task, with its metrics on held-out data."""

    task: str
    lr: float
    """The learning rate with the highest median of `score` over the seeds; the smallest if several are equal."""
    cell: Cell
    """The run with the highest score at that learning rate: its model answers the test set."""
    medians: Mapping[float, float]
    """Median score of every learning rate."""
    mean: Mapping[str, float]
    """Mean of each metric over the seeds at the chosen learning rate."""
    deviation: Mapping[str, float]
    """Standard deviation of each metric: of the sample, divided by the number of seeds minus one; 0 for one seed."""
    median: Mapping[str, float]
    num_seeds: int


def choose(task: str, by_cell: Mapping[Cell, Metrics]) -> Choice:
    """Choose the learning rate and run of a task from the metrics of its runs, of which there is at least one."""
    by_lr: dict[float, dict[Cell, Metrics]] = {}
    for cell, metrics in by_cell.items():
        by_lr.setdefault(cell.lr, {})[cell] = metrics
    medians = {lr: statistics.median(metrics["score"] for metrics in runs.values()) for lr, runs in by_lr.items()}
    lr = min(medians, key=lambda lr: (-medians[lr], lr))
    runs = by_lr[lr]
    columns = {name: [metrics[name] for metrics in runs.values()] for name in next(iter(runs.values()))}
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
    """Return a row for each task, and a row for the mean of their scores."""
    rows = []
    for choice in choices:
        metrics = ", ".join(
            f"{name} {choice.mean[name]:.2f} ± {choice.deviation[name]:.2f} ({choice.median[name]:.2f})"
            for name in choice.mean
            if not name.endswith(_LEFT_OUT)
        )
        rows.append((choice.task, f"{choice.lr:g}", str(choice.num_seeds), metrics, f"{choice.mean['score']:.2f}"))
    return [*rows, ("mean", "", "", "", f"{mean_score(choices):.2f}")]


def mean_score(choices: Sequence[Choice]) -> float:
    """Return the mean over tasks of the mean score over seeds."""
    return sum(choice.mean["score"] for choice in choices) / len(choices)


def as_markdown(choices: Sequence[Choice]) -> str:
    """Return the results as a Markdown table."""
    lines = [_HEAD, tuple("---" for _ in _HEAD), *rows_of(choices)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def as_html(choices: Sequence[Choice]) -> str:
    """Return the results as an HTML page."""
    rows = [row(*cells, classes=(None, None, None, None, "number")) for cells in rows_of(choices)]
    heading = tag("h1", "Fine-tuning, held-out data")
    return html_page("Fine-tuning", [heading, tag("div", table(_HEAD, rows), class_="panel scroll long")])


def as_json(choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the results as plain values for JSON."""
    return {
        "score": mean_score(choices),
        "tasks": {
            choice.task: {
                "peak_lr": choice.lr,
                "run": choice.cell.name,
                "seeds": choice.num_seeds,
                "mean": dict(choice.mean),
                "deviation": dict(choice.deviation),
                "median": dict(choice.median),
                "median_score_by_lr": {f"{lr:g}": value for lr, value in choice.medians.items()},
            }
            for choice in choices
        },
    }
