"""Shows the stages of long work on standard error: a bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from pretrainkit.corpus.parallel import Progress


@contextmanager
def shown_stages() -> "Iterator[Progress]":
    """What to pass as `progress`."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield _Bars(bars)


class _Lines:
    """Plain lines: one per stage and note."""

    def stage(self, name: str, total: int, unit: str) -> None:
        typer.echo(f"{name}, {amount(total, unit)}", err=True)

    def advance(self, amount: int) -> None: ...

    def note(self, message: str) -> None:
        typer.echo(message, err=True)


class _Bars:
    """One bar per stage."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._task: Any = None
        self._done = self._total = 0
        self._unit = ""

    def stage(self, name: str, total: int, unit: str) -> None:
        self._done, self._total, self._unit = 0, total, unit
        self._task = self._bars.add_task(name, total=total, amount="")

    def advance(self, amount: int) -> None:
        self._done += amount
        self._bars.update(self._task, advance=amount, amount=self._shown())

    def note(self, message: str) -> None:
        self._bars.console.print(message, markup=False, highlight=False)

    def _shown(self) -> str:
        return f"{amount(self._done, self._unit)} of {amount(self._total, self._unit)}"


def amount(number: int, unit: str) -> str:
    """ "12.3 MB" for the unit B, else "1 file", "2 files"."""
    return f"{number / 1e6:,.1f} MB" if unit == "B" else f"{number:,} {unit}{'' if number == 1 else 's'}"
