"""Samples over time: what a run answered to the same held-out examples after each evaluation."""

import numpy as np

from pretrainkit.report.markup import Markup, tag
from pretrainkit.report.numbers import label, number
from pretrainkit.report.run_folder import Run, Sample
from pretrainkit.report.tables import sample_cells

_MAX_EXAMPLES = 3
_MAX_STEPS = 8


def progress_section(run: Run) -> Markup | None:
    """A table for each of the first examples: what stays, then what changed, step by step; of many steps some that are
    evenly spread, the first and the last among them."""
    steps = _chosen(list(run.earlier_samples))
    samples = [run.earlier_samples[step] for step in steps]
    num = min((len(found) for found in samples), default=0)
    if len(steps) < 2 or not num:
        return None
    tables = [_table(steps, [found[place] for found in samples]) for place in range(min(num, _MAX_EXAMPLES))]
    panels = (tag("div", table, class_="panel scroll") for table in tables)
    return tag("section", tag("h2", "Samples while training"), *panels)


def _chosen(steps: list[int]) -> list[int]:
    if len(steps) <= _MAX_STEPS:
        return steps
    return [steps[place] for place in np.linspace(0, len(steps) - 1, _MAX_STEPS).round().astype(int)]


def _table(steps: list[int], over_time: list[Sample]) -> Markup:
    columns = list(dict.fromkeys(key for sample in over_time for key in sample))
    changing = [key for key in columns if any(sample.get(key) != over_time[0].get(key) for sample in over_time)]
    changing = changing or columns[-1:]
    fixed = [key for key in columns if key not in changing]
    span = str(len(changing))
    rows = [
        tag("tr", tag("th", label(key)), tag("td", cell, colspan=span))
        for key, cell in zip(fixed, sample_cells(over_time[0], fixed), strict=True)
    ]
    head = tag("tr", tag("th", "step"), *(tag("th", label(key)) for key in changing))
    for step, sample in zip(steps, over_time, strict=True):
        cells = sample_cells(sample, changing)
        rows.append(tag("tr", tag("th", number(step)), *(tag("td", cell) for cell in cells)))
    return tag("table", tag("tbody", *rows[: len(fixed)], head, *rows[len(fixed) :]), class_="samples progress")
