"""Which learning rate, and which of its runs, stands for a task. Torch-free."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from pretrainkit.sweep.plan import Cell

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
