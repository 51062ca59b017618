"""The results of a sweep as JSON, Markdown and HTML. Torch-free."""

import html
from collections.abc import Sequence
from typing import Any

from pretrainkit.sweep.choice import Choice

_LEFT_OUT = ("loss", "score", "cut_words", "cut_questions")
"""Counts and what is shown elsewhere; all is in the JSON."""
_HEAD = ("task", "learning rate", "seeds", "metrics: mean ± deviation (median)", "score")


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

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "\n".join([row(_HEAD, "th"), *(row(cells, "td") for cells in rows_of(choices))])
    style = (
        "body{font-family:sans-serif}table{border-collapse:collapse}th{white-space:nowrap}"
        "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ccc}"
        "td:last-child,th:last-child{text-align:right}"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Fine-tuning</title>'
        f"<style>{style}</style></head>"
        f"<body><h1>Fine-tuning, held-out data</h1>\n<table>\n{body}\n</table></body></html>\n"
    )


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
