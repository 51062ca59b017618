"""Decisions by held-out metrics: which checkpoints to keep, and when to end a run early.

Both classes see the metrics of every evaluation, which are the same on all ranks. Their state is stored in checkpoints,
so a resumed run decides like one that never stopped. An evaluation without the metric is ignored, and NaN is never an
improvement.
"""

import math
from collections.abc import Mapping
from typing import Any

from pretrainkit.training.evaluate_config import EarlyStoppingConfig
from pretrainkit.training.run import KeepBestConfig


class BestSteps:
    """The steps with the best values of a metric."""

    def __init__(self, config: KeepBestConfig) -> None:
        self.config = config
        self._values: dict[int, float] = {}

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps of the best values, best first."""
        return tuple(self._values)

    def record(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Record an evaluation. Returns True if it is among the best so far; of equal values the earlier one is
        better."""
        value = metrics.get(self.config.metric)
        if value is None or math.isnan(value):
            return False
        sign = 1 if self.config.mode == "min" else -1
        values = self._values | {step: value}
        order = sorted(values, key=lambda at: (sign * values[at], at))
        self._values = {at: values[at] for at in order[: self.config.keep]}
        return step in self._values

    def state(self) -> list[list[float]]:
        """Return the state for a checkpoint, as [step, value] pairs."""
        return [[step, value] for step, value in self._values.items()]

    def load_state(self, state: list[list[float]]) -> None:
        """Restore the state of a checkpoint, limited to `keep` steps."""
        self._values = {int(step): value for step, value in state[: self.config.keep]}


class EarlyStopping:
    """Counts evaluations in which a metric did not improve."""

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self.config = config
        self._best: float | None = None
        self._best_step = 0
        self._num_worse = 0

    @property
    def is_over(self) -> bool:
        """True if the run should end."""
        return self._num_worse >= self.config.patience

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record an evaluation."""
        value, best, config = metrics.get(self.config.metric), self._best, self.config
        if value is None:
            return
        gain = math.inf if best is None else best - value if config.mode == "min" else value - best
        if not math.isnan(value) and gain > config.atol + config.rtol * abs(best or 0.0):
            self._best, self._best_step, self._num_worse = value, step, 0
        else:
            self._num_worse += 1

    def describe(self) -> str:
        """Return the reason why the run should end."""
        metric, num = self.config.metric, self._num_worse
        if self._best is None:
            return f"{metric} was not a number in {num} evaluations"
        return f"{metric} has not improved for {num} evaluations (best: {self._best:.6g} at step {self._best_step})"

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON values."""
        values = {"best": self._best, "best_step": self._best_step, "num_worse": self._num_worse}
        return {"metric": self.config.metric, **values}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint; the state of another metric is ignored."""
        if state["metric"] == self.config.metric:
            self._best, self._best_step = state["best"], int(state["best_step"])
            self._num_worse = int(state["num_worse"])
