"""What a run calls while it goes on: those who are told about it, evaluations, and the samples they show. Torch-free.

The library is quiet; the command line passes a Watcher that prints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


Sample = Mapping[str, Any]
"""A held-out example with a model's answer, {column: value}, as `Recipe.sample` gives it. A value is a text, or a list
of {"text": ..., "image": a data URI, "is_right": true or false}, all of them optional."""


class Watcher:
    """Receives what happens on rank 0. Every method does nothing here; override what is of interest."""

    def started(self, info: Mapping[str, Any]) -> None:
        """Once, before the first step: run folder, parameters, device, precision, first and last step."""

    def stepped(self, step: int, num_steps: int) -> None:
        """After every update: must be cheap."""

    def logged(self, step: int, metrics: Mapping[str, float]) -> None:
        """At every log step: the metrics as written to metrics.jsonl."""

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """After an evaluation."""

    def event(self, step: int, kind: str, text: str) -> None:
        """Checkpoints, resumption, skipped steps, blocks that are no longer compiled, a stop."""


@dataclass(frozen=True)
class Evaluation:
    """Evaluation that is repeated during training."""

    run: Callable[[nn.Module, str], dict[str, float]]
    """Metrics of a model by name; a collective, the same on all ranks. The text identifies this evaluation among those
    of the run: the step, and "-ema" for averaged weights."""
    every_steps: int | None
    """Number of updates between calls; the last update is always followed by one. None: only after the last."""

    def is_due(self, step: int) -> bool:
        """True if the evaluation is due after update `step`."""
        return self.every_steps is not None and step % self.every_steps == 0
