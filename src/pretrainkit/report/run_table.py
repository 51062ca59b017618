"""The runs below a folder as a table: state, progress, metrics, time and size. Imports no torch."""

import fnmatch
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pretrainkit.config.loader import flatten
from pretrainkit.errors import DataError, InputError
from pretrainkit.report.curves import training_seconds
from pretrainkit.report.run_folder import Run, as_number, read_run
from pretrainkit.training.checkpoints.files import is_locked
from pretrainkit.training.folder import CONFIG, SUMMARY

_CONDITION = re.compile(r"(?P<key>[^=<>]+?)(?P<sign><=|>=|=|<|>)(?P<value>.*)", re.DOTALL)
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}


COLUMNS = {name: name for name in ("name", "recipe", "preset", "state", "step", "num_steps", "seconds", "started")} | {
    "bytes": "num_bytes",
    "run": "name",
    "time": "seconds",
    "size": "num_bytes",
}
"""Maps names for conditions and sorting to the fields of a row."""


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A row of the table: a run."""

    name: str
    """Path below the folder that was searched."""
    folder: Path
    recipe: str
    preset: str
    state: str
    """running, finished, stopped (by a signal, with its state saved), interrupted (killed or failed), or unreadable."""
    step: int
    num_steps: int | None
    seconds: float | None
    """Time of training from events and log; None if unknown."""
    num_bytes: int
    """Size of all files of the run."""
    started: str
    """Local time of the start, ISO 8601, or ''."""
    metrics: dict[str, float]
    """Last value of each held-out metric; if the run was not evaluated, of each training loss."""
    percentages: tuple[str, ...] = ()
    """Patterns of the names of the metrics whose values are in per cent."""
    config: dict[str, Any]
    """Maps the dotted path of each setting to its value."""
    note: str = ""
    """Reason for which the run is unreadable."""

    def value(self, key: str) -> Any:
        """Return the value of a column, a metric, or a setting; None if the run has none with this name."""
        if key in COLUMNS:
            return getattr(self, COLUMNS[key])
        return self.metrics.get(key, self.config.get(key))


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders in `folder`, by path; or the folder itself if it is a run. Raises DataError if there is
    no folder, or no run in it."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder\n  give a folder with runs, such as runs")
    runs = []
    for path, folders, files in os.walk(folder):
        if CONFIG in files and ("metrics.jsonl" in files or "provenance.json" in files):
            runs.append(Path(path))
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
    if not runs:
        raise DataError(
            f"{folder} has no run in it\n  a run is a folder that `pretrainkit train` wrote, with config.yaml"
        )
    return sorted(runs)


def run_table(
    folder: Path, *, where: Iterable[str] = (), sort: str | None = None, reverse: bool = False
) -> list[RunRow]:
    """Return the runs below `folder`.

    Args:
        where: Conditions that all must hold, such as `state=running`, `name=*large*`, `masked_lm_loss<3` or
            `optimizer.peak_lr>=1e-3`: a column, a metric or a setting, a sign, and a value (with `=` also a pattern).
        sort: Column, metric or setting to sort by; None: by name. Runs without it come last.
        reverse: Largest first.

    Raises:
        DataError: There is no run.
        InputError: A condition is not valid, or no run has the key of a condition or the key to sort by.
    """
    conditions = [_condition(text) for text in where]
    rows = [_row(path, folder) for path in find_runs(folder)]
    for key in [*(key for key, _, _ in conditions), *([sort] if sort else [])]:
        if all(row.value(key) is None for row in rows):
            metrics = sorted({name for row in rows for name in row.metrics})
            raise InputError(
                f"no run in {folder} has {key!r}\n  columns: {', '.join(COLUMNS)}; metrics: "
                f"{', '.join(metrics) or 'none'}; or a setting such as optimizer.peak_lr"
            )
    rows = [row for row in rows if all(_holds(row.value(key), sign, value) for key, sign, value in conditions)]
    if sort is not None:
        known = [row for row in rows if row.value(sort) is not None]
        known.sort(key=lambda row: _sortable(row.value(sort)), reverse=reverse)
        return known + [row for row in rows if row.value(sort) is None]
    return rows[::-1] if reverse else rows


def named_runs(folders: Sequence[Path]) -> list[Run]:
    """Read runs for a comparison; each is named by the part of its path that differs from the others. Raises
    DataError if one cannot be read, and InputError if one is given twice."""
    paths = [path.resolve() for path in folders]
    if twice := [str(folder) for folder, path in zip(folders, paths) if paths.count(path) > 1]:
        raise InputError(f"{twice[0]} is given twice\n  give each run once")
    root = Path(os.path.commonpath([path.parent for path in paths]))
    return [replace(read_run(folder), name=path.relative_to(root).as_posix()) for folder, path in zip(folders, paths)]


def state_of(run: Run) -> str:
    """Return running, finished, stopped or interrupted."""
    if is_locked(run.folder / "checkpoints"):
        return "running"
    if (run.folder / SUMMARY).is_file():
        return "finished"
    last = next((event.event for event in reversed(run.events) if event.event != "checkpoint"), "")
    return "stopped" if last == "stopped" else "interrupted"


def _row(path: Path, root: Path) -> RunRow:
    name = path.relative_to(root).as_posix() if path != root else path.resolve().name
    size = sum(file.lstat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())
    try:
        run = read_run(path)
    except DataError as error:
        state = "running" if is_locked(path / "checkpoints") else "unreadable"
        unknown: dict[str, Any] = {"step": 0, "num_steps": None, "seconds": None, "started": "", "metrics": {}}
        note = str(error).split("\n")[0]
        return RunRow(
            name=name, folder=path, recipe="", preset="", state=state, num_bytes=size, config={}, note=note, **unknown
        )
    steps = as_number(run.config.get("num_steps"))
    last = run.metrics.rows[-1]
    losses = {key: value for key, value in last.items() if key == "loss" or key.endswith("_loss")}
    return RunRow(
        name=name,
        folder=path,
        recipe=str(run.config.get("recipe") or ""),
        preset=run.preset,
        state=state_of(run),
        step=int(last["step"]),
        num_steps=None if steps is None else int(steps),
        seconds=training_seconds(run),
        num_bytes=size,
        started=str(run.provenance.get("started") or "")[:19],
        metrics=run.held_out or losses,
        percentages=run.percentages,
        config=flatten(run.config),
    )


def _condition(text: str) -> tuple[str, str, str]:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise InputError(
            f"--where {text!r} is not a condition\n  write KEY=VALUE, KEY<VALUE or KEY>VALUE, such as state=finished"
        )
    key, sign, value = match["key"].strip(), match["sign"], match["value"].strip()
    if sign != "=" and _number(value) is None:
        raise InputError(f"--where {text!r} compares with {value!r}, which is not a number\n  write {key}={value}")
    return key, sign, value


def _holds(actual: Any, sign: str, value: str) -> bool:
    if actual is None:
        return sign == "=" and value in ("", "null")
    wanted, number = _number(value), as_number(actual)
    if sign == "=":
        text = str(actual).lower() if isinstance(actual, bool) else str(actual)
        return wanted == number if wanted is not None and number is not None else fnmatch.fnmatchcase(text, value)
    return wanted is not None and number is not None and _COMPARED[sign](number, wanted)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _sortable(value: Any) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by size before texts by letters; NaN comes after all numbers."""
    number = as_number(value)
    return (number is None, math.inf if number is None or math.isnan(number) else number, str(value))
