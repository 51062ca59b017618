"""How a run tells about itself while it goes on. The library is quiet; the command line passes one that prints."""

from collections.abc import Mapping
from typing import Any


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
        """Checkpoints, resumption, skipped steps, a stop."""
