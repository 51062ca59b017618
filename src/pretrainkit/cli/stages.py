"""Show the stages of long work on standard error: a bar on a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from pretrainkit.errors import Interrupted

if TYPE_CHECKING:
    from pretrainkit.workers.processes import Progress

VERBOSITY = "PRETRAINKIT_VERBOSITY"
"""Environment variable that `-q` and `-v` set to `quiet` or `verbose`, so that child processes know it too."""
_SECONDS_BETWEEN_LINES = 10


@contextmanager
def shown_stages() -> "Iterator[Progress]":
    """Yield the object to pass as `progress`. Turn an interrupt into a message that says how to continue."""
    try:
        if os.environ.get(VERBOSITY) == "quiet":
            from pretrainkit.workers.processes import Quiet

            yield Quiet()
            return
        if not sys.stderr.isatty():
            yield _Shown()
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        done, left = TextColumn("{task.fields[amount]}"), TimeRemainingColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), done, left)
        with Progress(*columns, console=Console(stderr=True)) as bars:
            yield _Shown(bars)
    except KeyboardInterrupt as error:
        raise Interrupted("stopped\n  finished parts are kept: run the same command again to continue") from error


class _Shown:
    """Show a bar per stage. Without bars, print a line per stage and per note, and every ten seconds the progress."""

    def __init__(self, bars: Any = None) -> None:
        self._bars = bars

    def stage(self, name: str, total: int, unit: str) -> None:
        self._name, self._total, self._unit, self._done = name, total, unit, 0
        self._last_printed = time.monotonic()
        if self._bars is None:
            self.note(f"{name} {amount(total, unit)}")
        else:
            self._task = self._bars.add_task(name, total=total, amount="")

    def advance(self, number: int) -> None:
        self._done += number
        done = f"{amount(self._done, self._unit)} of {amount(self._total, self._unit)}"
        if self._bars is not None:
            self._bars.update(self._task, advance=number, amount=done)
        elif time.monotonic() - self._last_printed >= _SECONDS_BETWEEN_LINES:
            self._last_printed = time.monotonic()
            self.note(f"{self._name}: {done}")

    def note(self, message: str) -> None:
        if self._bars is None:
            typer.echo(message, err=True)
        else:
            self._bars.console.print(message, markup=False, highlight=False)


def amount(number: int, unit: str) -> str:
    """Return text such as `1,234 documents`; megabytes if the unit is B (bytes)."""
    return f"{number / 1e6:,.1f} MB" if unit == "B" else f"{number:,} {unit}{'' if number == 1 else 's'}"
