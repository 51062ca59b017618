"""What held-out metrics decide: which checkpoints are kept, and when a run ends early.

Both see the metrics of every evaluation, which are the same on all ranks, and their state is in the checkpoints: a run
that was stopped and resumed decides as if it never stopped. An evaluation without their metric does not count, and a
value that is no number is never good.
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
        """Best first."""
        return tuple(self._values)

    def saw(self, step: int, metrics: Mapping[str, float]) -> bool:
        """True if this evaluation is one of the best so far. Of equal values the earlier is better."""
        value = metrics.get(self.config.metric)
        if value is None or math.isnan(value):
            return False
        sign = 1 if self.config.mode == "min" else -1
        values = self._values | {step: value}
        order = sorted(values, key=lambda one: (sign * values[one], one))
        self._values = {one: values[one] for one in order[: self.config.keep]}
        return step in self._values

    def state(self) -> list[list[float]]:
        """For a checkpoint."""
        return [[step, value] for step, value in self._values.items()]

    def load_state(self, state: list[list[float]]) -> None:
        """Of a checkpoint; what it holds beyond `keep` is forgotten."""
        self._values = {int(step): value for step, value in state[: self.config.keep]}


class EarlyStopping:
    """Counts evaluations in which a metric got no better."""

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self.config = config
        self._best: float | None = None
        self._best_step = 0
        self._num_worse = 0

    @property
    def is_over(self) -> bool:
        """True if the run should end."""
        return self._num_worse >= self.config.patience

    def saw(self, step: int, metrics: Mapping[str, float]) -> None:
        """Look at an evaluation."""
        value, best, config = metrics.get(self.config.metric), self._best, self.config
        if value is None:
            return
        gain = math.inf if best is None else best - value if config.mode == "min" else value - best
        if not math.isnan(value) and gain > config.atol + config.rtol * abs(best or 0.0):
            self._best, self._best_step, self._num_worse = value, step, 0
        else:
            self._num_worse += 1

    def describe(self) -> str:
        """Why it is over."""
        metric, num = self.config.metric, self._num_worse
        if self._best is None:
            return f"{metric} was no number in {num} evaluations"
        return f"{metric} was no better in {num} evaluations than {self._best:.6g} at step {self._best_step}"

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        found = {"best": self._best, "best_step": self._best_step, "num_worse": self._num_worse}
        return {"metric": self.config.metric, **found}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Of a checkpoint; that of another metric tells nothing."""
        if state["metric"] == self.config.metric:
            self._best, self._best_step = state["best"], int(state["best_step"])
            self._num_worse = int(state["num_worse"])
