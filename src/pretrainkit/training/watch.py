"""Hooks of a run: the watcher of its progress, evaluations, and samples to show. This module does not import torch.

The library prints nothing; the command line passes a Watcher that prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


Sample = Mapping[str, Any]
"""A held-out example with a model's answer, {column: value}, as returned by `Recipe.sample`. A value is a text, or a
list of {"text": ..., "image": a data URI, "is_right": true or false, "marks": [[begin, end, is_right or None], ...]};
all keys are optional. Marks are parts of the text, in characters."""


class Watcher:
    """Receives the events of a run on rank 0. The methods do nothing; override those of interest."""

    def started(self, info: Mapping[str, Any]) -> None:
        """Receive run folder, parameters, device, precision, first and last step. Called once, before the first
        step."""

    def stepped(self, step: int, num_steps: int) -> None:
        """Called after every update, so it must be fast."""

    def logged(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receive the metrics as written to metrics.jsonl, at every log step."""

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receive the metrics of an evaluation."""

    def event(self, step: int, kind: str, text: str) -> None:
        """Receive events: checkpoints, resumption, skipped updates, blocks that are no longer compiled, a stop."""


@dataclass(frozen=True)
class Evaluation:
    """Evaluation that is repeated during training."""

    run: Callable[[nn.Module, str], dict[str, float]]
    """Return metrics of a model by name. All ranks must call it; they get the same result. The text identifies this
    evaluation among those of the run: the step, and "-ema" for averaged weights."""
    every_steps: int | None
    """Number of updates between calls; the last update is always followed by one. None: only after the last."""

    def is_due(self, step: int) -> bool:
        """True if the evaluation is due after update `step`."""
        return self.every_steps is not None and step % self.every_steps == 0
