"""Read a run folder without trusting its content: files may be missing, truncated, or hold anything."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pretrainkit.config.loader import flatten
from pretrainkit.config.yaml import parse_yaml
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.eval.directions import DIRECTIONS
from pretrainkit.report.shown import Shown, read_shown

Floats = NDArray[np.float64]
Row = dict[str, float]
Sample = dict[str, str | tuple[Shown, ...]]


class Event(NamedTuple):
    step: float
    event: str
    """started, stopped, resumed, checkpoint, skipped, finished, or another name."""
    text: str
    time: float | None = None
    """Seconds since 1970, or None if the log has no time."""


@dataclass(frozen=True)
class Log:
    """Values that were logged, sorted by step. If steps were repeated after a resume, it has only the later values."""

    rows: list[Row]

    @cached_property
    def keys(self) -> list[str]:
        """Names of the logged metrics, in the order of their first appearance."""
        return [key for key in dict.fromkeys(key for row in self.rows for key in row) if key != "step"]

    def curve(self, key: str) -> tuple[Floats, Floats]:
        """Return the steps and the values of a metric: float64 (N,), (N,)."""
        pairs = [(row["step"], row[key]) for row in self.rows if key in row]
        table = np.array(pairs, np.float64).reshape(-1, 2)
        return table[:, 0], table[:, 1]


@dataclass(frozen=True)
class Run:
    """A run, as read from its folder."""

    folder: Path
    name: str
    """Name of the folder; among several runs the part of the path that differs."""
    preset: str
    """Name of the preset, or ''."""
    config: dict[str, Any]
    provenance: dict[str, Any]
    metrics: Log
    """Metrics of the training."""
    evaluations: Log
    """Metrics on held-out data."""
    samples: list[Sample]
    earlier_samples: dict[int, list[Sample]]
    """Samples from earlier evaluations of the run, by step in ascending order."""
    events: list[Event]
    """Events in their order, then resumes that only the metrics show."""
    summary: dict[str, Any]
    notes: list[str]
    """Notes for the reader of the report on data that was unreadable or skipped."""

    @property
    def held_out(self) -> dict[str, float]:
        """The newest value of every metric on held-out data.

        Values from `summary.json` come first: keys that begin with valid_ or, if there are none, keys of metrics that
        were evaluated.
        """
        newest: dict[str, float] = {}
        prefix = "valid_" if any(name.startswith("valid_") for name in self.summary) else ""
        for name, value in self.summary.items():
            key, number = name.removeprefix(prefix), as_number(value)
            if number is not None and (key != name if prefix else key in self.evaluations.keys):
                newest[key] = number
        for key in self.evaluations.keys:
            newest.setdefault(key, next(row[key] for row in reversed(self.evaluations.rows) if key in row))
        return newest

    def direction(self, key: str) -> str | None:
        """Return "rises" or "falls", the direction in which a metric becomes better; None if the recipe does not name
        it."""
        recorded = self.provenance.get("directions")
        directions = recorded if isinstance(recorded, dict) else DIRECTIONS  # older runs did not record them
        return next((direction for name, direction in directions.items() if fnmatchcase(key, name)), None)

    @property
    def percentages(self) -> tuple[str, ...]:
        """Patterns of the names of the metrics whose values are in per cent."""
        recorded = self.provenance.get("percentages")
        if isinstance(recorded, list):
            return tuple(map(str, recorded))
        # Older runs did not record them, so their values have to tell.
        evaluated = chain(self.held_out.items(), *(row.items() for row in self.evaluations.rows))
        is_above_one = any(value > 1 for key, value in evaluated if key.endswith("accuracy"))
        return ("*accuracy",) if is_above_one else ()

    @property
    def trained_seconds(self) -> float | None:
        """Total time from each start or resume to the last event before the next one; None if events have no times."""
        total, began, last = 0.0, None, None
        for event in self.events:
            if event.time is None or not math.isfinite(event.time):
                continue
            if event.event in ("started", "resumed"):
                total += last - began if began is not None and last is not None else 0.0
                began = event.time
            last = event.time
        return total + last - began if began is not None and last is not None and last > began else None


def read_run(folder: Path) -> Run:
    """Read a run folder. Raises DataError if it is not a run folder, has no metrics, or a file in it is unreadable."""
    if not folder.is_dir():
        problem = "is a file, not a run folder" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {problem}\n  give the folder that `pretrainkit train` wrote, such as runs/NAME")
    if not (folder / "metrics.jsonl").is_file():
        names = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
        raise DataError(
            f"{folder} is not a run folder: it has no metrics.jsonl\n  it holds: {names}\n"
            "  give the folder that `pretrainkit train` wrote, such as runs/NAME"
        )
    notes: list[str] = []
    logged, rewound = _last_of_each_step(_rows(folder / "metrics.jsonl", notes))
    if not logged:
        every = flatten(_mapping_of(folder / "config.yaml", notes)).get("log.every_steps")
        raise DataError(
            f"{folder / 'metrics.jsonl'} has no logged step, so there is nothing to report\n"
            f"  train longer: a line is written every {every or 10} steps (log.every_steps)"
        )
    evaluations, _ = _last_of_each_step(_rows(folder / "eval.jsonl", notes))
    events = _events(folder / "events.jsonl", notes)
    if not any(event.event == "resumed" for event in events):
        events += [Event(step, "resumed", "steps after this one were repeated") for step in rewound]
    provenance = _mapping_of(folder / "provenance.json", notes)
    return Run(
        folder=folder,
        name=folder.resolve().name,
        preset=_preset(folder / "config.yaml", provenance),
        config=_mapping_of(folder / "config.yaml", notes),
        provenance=provenance,
        metrics=Log(logged),
        evaluations=Log(evaluations),
        samples=_samples(folder / "samples.json", notes),
        earlier_samples=_earlier_samples(folder / "samples", notes),
        events=events,
        summary=_mapping_of(folder / "summary.json", notes),
        notes=notes,
    )


def as_number(value: object) -> float | None:
    """Return a JSON number as a float (infinite if it is too large), or None for other values, including booleans."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _text(path: Path, notes: list[str]) -> str:
    """Return the text of a file, or '' if it does not exist. Bytes that are not UTF-8 become replacement characters."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise DataError(f"cannot read {path}\n  {error.strerror or error}") from None
    shown = raw.decode("utf-8", errors="replace")
    if "\ufffd" in shown and "\ufffd".encode() not in raw:
        notes.append(f"{path.name} has bytes that are not UTF-8")
    return shown


def _json_lines(path: Path, notes: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = _text(path, notes).split("\n")
    bad = []
    for i, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield i, value
        elif i == len(lines):
            notes.append(f"the last line of {path.name} is incomplete and was left out")
        else:
            bad.append(str(i))
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        notes.append(f"{path.name}: left out unreadable lines: {', '.join(bad[:5])}{more}")


def _rows(path: Path, notes: list[str]) -> list[Row]:
    rows = []
    for line, entry in _json_lines(path, notes):
        numbers = {key: math.nan if value is None else as_number(value) for key, value in entry.items()}
        row = {key: number for key, number in numbers.items() if number is not None}
        if math.isfinite(row.get("step", math.nan)):
            rows.append(row)
        else:
            notes.append(f"{path.name}: left out line {line}, which has no step")
    return rows


def _last_of_each_step(rows: list[Row]) -> tuple[list[Row], list[float]]:
    """Return rows sorted by step, with later rows in place of those that they repeat, and the steps of the resumes."""
    kept: list[Row] = []
    rewound = []
    for row in rows:
        if kept and row["step"] < kept[-1]["step"]:
            while kept and kept[-1]["step"] >= row["step"]:
                kept.pop()
            rewound.append(kept[-1]["step"] if kept else row["step"])
        if kept and row["step"] == kept[-1]["step"]:
            kept[-1] = {**kept[-1], **row}
        else:
            kept.append(row)
    return kept, rewound


def _events(path: Path, notes: list[str]) -> list[Event]:
    events = []
    for line, entry in _json_lines(path, notes):
        step, name = as_number(entry.get("step")), entry.get("event")
        if step is None or not math.isfinite(step) or not isinstance(name, str):
            notes.append(f"{path.name}: left out line {line}, which has no step or no event")
            continue
        events.append(Event(step, name, str(entry.get("text") or ""), as_number(entry.get("time"))))
    return events


def _samples(path: Path, notes: list[str]) -> list[Sample]:
    value = _parsed(path, notes)
    if isinstance(value, list):
        return [read_sample(item, notes) for item in value if isinstance(item, dict) and item]
    if value is not None:
        notes.append(f"{path.name} does not hold a list and was left out")
    return []


def read_sample(item: Mapping[str, Any], notes: list[str]) -> Sample:
    """Read a sample, {column: text or list of pictures}, see `training.watch.Sample`. Invalid values add to `notes`."""
    return {str(k): read_shown(v, notes) if isinstance(v, list) else str(v) for k, v in item.items()}


def _earlier_samples(folder: Path, notes: list[str]) -> dict[int, list[Sample]]:
    named = ((path.stem.removeprefix("step-"), path) for path in folder.glob("step-*.json"))
    by_step = sorted((int(step), path) for step, path in named if step.isdecimal())
    return {step: _samples(path, notes) for step, path in by_step}


def _mapping_of(path: Path, notes: list[str]) -> dict[str, Any]:
    value = _parsed(path, notes)
    if isinstance(value, dict):
        return {str(key): sub for key, sub in value.items()}
    if value is not None:
        notes.append(f"{path.name} does not hold a mapping and was left out")
    return {}


def _parsed(path: Path, notes: list[str]) -> Any:
    """Return the value in a JSON or YAML file, or None if the file does not exist or is invalid."""
    content, is_yaml = _text(path, notes), path.suffix == ".yaml"
    try:
        return parse_yaml(content, path.name) if is_yaml else json.loads(content) if content.strip() else None
    except (ConfigError, ValueError, RecursionError) as error:
        reason = "YAML and was left out" if is_yaml else f"JSON and was left out: {error}"
        notes.append(f"{path.name} is not valid {reason}")
        return None


def _preset(path: Path, provenance: dict[str, Any]) -> str:
    """Return the preset that the comment in the first line of the config names, else the origin of a value, else ''."""
    first = _text(path, []).split("\n", 1)[0]
    words = first.removeprefix("#").split() if first.startswith("#") else []
    named = [word.strip(".,:;'\"()") for word in words if "/" in word]
    sources = provenance.get("sources")
    origins = sources.values() if isinstance(sources, dict) else []
    named += [origin[7:] for origin in origins if isinstance(origin, str) and origin.startswith("preset ")]
    return named[0] if named else ""
