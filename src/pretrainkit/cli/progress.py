"""Output of training: a live bar on a terminal, plain lines elsewhere, JSON lines for machines."""

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from pretrainkit.cli.options import print_json
from pretrainkit.cli.stages import VERBOSITY
from pretrainkit.training.watch import Watcher


def make_watcher(as_json: bool = False) -> Watcher:
    """Return the watcher that fits the kind of output: JSON, a terminal, or a file."""
    if as_json:
        return JsonWatcher()
    verbosity = os.environ.get(VERBOSITY)
    if verbosity == "quiet":
        return Watcher()
    if verbosity == "verbose" or not sys.stderr.isatty():
        return LineWatcher(shows_all=verbosity == "verbose")
    return BarWatcher()


def headline(info: Mapping[str, Any]) -> str:
    """Return a line about a run that starts, and the table of its mixture."""
    mixture = ""
    if len(rows := info.get("mixture", [])) > 1:
        from pretrainkit.tasks.rates import table

        mixture = "".join(f"\n  {line}" for line in table(rows, info["num_examples"]))
    resumed = f", from step {info['first_step']}" if info["first_step"] else ""
    return (
        f"{info['folder']}: {info['parameters']:,} parameters, {info['precision']} on {info['device']}"
        f"{' x ' + str(info['ranks']) if info['ranks'] > 1 else ''}, {info['num_steps']:,} steps{resumed}, "
        f"{info['epochs']:.2f} epochs of {info['examples']:,} examples"
        + (f"\n{info['peak']}" if info["device"].startswith("cuda") else "")
        + mixture
    )


def metrics_line(metrics: Mapping[str, float]) -> str:
    """Return the most important metrics on one line."""
    is_loss = {name: name.endswith("loss") or name.startswith("loss_per_") for name in metrics}
    words = [f"{name.removesuffix('_loss')} {value:.3f}" for name, value in metrics.items() if is_loss[name]]
    words.append(f"lr {metrics['lr']:.2e}")
    words.append(f"norm {metrics['grad_norm']:.2f}")
    if "tokens_per_second" in metrics:
        words.append(f"{metrics['tokens_per_second']:,.0f} tok/s")
    if metrics.get("mfu"):
        words.append(f"MFU {metrics['mfu']:.1%}")
    return "  ".join(words)


def evaluation_line(metrics: Mapping[str, float]) -> str:
    """Return held-out metrics on one line."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


class LineWatcher(Watcher):
    """Print plain lines, at most one per two seconds; with `shows_all`, one per logged step and checkpoint."""

    def __init__(self, shows_all: bool = False) -> None:
        self._last, self._shows_all = 0.0, shows_all

    def started(self, info: Mapping[str, Any]) -> None:
        self._print(headline(info))

    def logged(self, step: int, metrics: Mapping[str, float]) -> None:
        now = time.monotonic()
        if self._shows_all or now - self._last >= 2:
            self._last = now
            self._print(f"step {step:>7,}  {metrics_line(metrics)}")

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self._print(f"step {step:>7,}  held out: {evaluation_line(metrics)}")

    def event(self, step: int, kind: str, text: str) -> None:
        if self._shows_all or kind != "checkpoint":
            self._print(f"step {step:>7,}  {kind}: {text}")

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class BarWatcher(LineWatcher):
    """Show a live bar with rate, time left and the newest metrics. Rare events are printed as lines above it."""

    def __init__(self) -> None:
        super().__init__()
        from rich import progress
        from rich.console import Console

        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[metrics]}"),
            console=Console(stderr=True),
        )
        self._task: Any = None

    def started(self, info: Mapping[str, Any]) -> None:
        super().started(info)
        self._progress.start()
        self._task = self._progress.add_task("train", total=info["num_steps"], completed=info["first_step"], metrics="")

    def stepped(self, step: int, num_steps: int) -> None:
        self._progress.update(self._task, completed=step)

    def logged(self, step: int, metrics: Mapping[str, float]) -> None:
        self._progress.update(self._task, metrics=metrics_line(metrics))

    def event(self, step: int, kind: str, text: str) -> None:
        if kind in ("stopped", "finished"):
            self._progress.stop()
        super().event(step, kind, text)

    def _print(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)


class JsonWatcher(Watcher):
    """Print one JSON object per line on standard output."""

    def started(self, info: Mapping[str, Any]) -> None:
        print_json({"event": "started", **info})

    def logged(self, step: int, metrics: Mapping[str, float]) -> None:
        print_json({"event": "metrics", "step": step, **metrics})

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        print_json({"event": "evaluation", "step": step, **metrics})

    def event(self, step: int, kind: str, text: str) -> None:
        print_json({"event": kind, "step": step, "text": text})
