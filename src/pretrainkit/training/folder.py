"""The run folder: everything about one training in one place, readable without pretrainkit."""

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from typing import Any

from pretrainkit.config.yaml import dump_yaml, parse_yaml
from pretrainkit.errors import DataError, InputError, RunError
from pretrainkit.files.manifest import atomic_file
from pretrainkit.training.run import RunConfig
from pretrainkit.training.watch import Sample

CONFIG, PROVENANCE, EVENTS, EVALUATIONS = "config.yaml", "provenance.json", "events.jsonl", "eval.jsonl"
SUMMARY = "summary.json"
"""Written last: a run whose newest checkpoint is of the step named in it is complete."""
SAMPLES = "samples"
"""Folder of what a model answered while it was trained, a file for each evaluation."""


class RunFolder:
    """Paths and small files of a run. Only rank 0 writes."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def cache(self) -> Path:
        """What can be computed again."""
        return self.path / "cache"

    @property
    def exists(self) -> bool:
        """True if a run was started here."""
        return (self.path / CONFIG).is_file()

    @property
    def has_checkpoint(self) -> bool:
        """True if anything was saved here (maybe torn: the checkpoint store finds that out)."""
        return any(self.checkpoints.glob("step-*"))

    def require_new(self) -> None:
        """Raises InputError where the folder holds a run with checkpoints, or something else than a run."""
        if self.has_checkpoint:
            raise InputError(
                f"{self.path} already holds a run\n  go on with it: pretrainkit resume {quote(str(self.path))}\n"
                "  or give another place: --out FOLDER"
            )
        has_only_lock = self.checkpoints.is_dir() and {entry.name for entry in self.checkpoints.iterdir()} <= {".lock"}
        of_unstarted = {"logs", "cache", "launch", *(["checkpoints"] if has_only_lock else [])}
        if self.path.is_dir() and not self.exists and not {entry.name for entry in self.path.iterdir()} <= of_unstarted:
            raise InputError(f"{self.path} holds something else than a run\n  give a new folder: --out FOLDER")

    def prepare(self) -> None:
        """Make the folder for a new run. What a run left that never saved anything is cleared away. Raises InputError
        as `require_new`, or where it cannot be written."""
        self.require_new()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            old = (CONFIG, PROVENANCE, EVENTS, EVALUATIONS, SUMMARY, "samples.json", "skipped-*.json")
            for name in (*old, f"{SAMPLES}/step-*.json"):
                for left in self.path.glob(name):
                    left.unlink()
        except OSError as error:
            raise InputError(
                f"cannot write the run folder {self.path}\n  {error}\n  give another place: --out FOLDER"
            ) from None

    def discard(self) -> None:
        """Remove a folder that `prepare` made, as far as it holds nothing but maybe an empty `checkpoints`."""
        with suppress(OSError):
            if self.checkpoints.is_dir():
                (self.checkpoints / ".lock").unlink(missing_ok=True)
                self.checkpoints.rmdir()
            self.path.rmdir()

    def record(self, config: RunConfig, provenance: Mapping[str, Any]) -> None:
        """Write config and provenance. Raises DataError where that cannot be written."""
        _write(self.path / CONFIG, dump_yaml(config.model_dump(mode="json")))
        self.write_json(PROVENANCE, provenance)

    def config_tree(self) -> dict[str, Any]:
        """The resolved config as nested plain values. Raises DataError when this is no run folder."""
        path = self.path / CONFIG
        try:
            tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise DataError(
                f"{self.path} is not a run folder: {error.strerror or error}: {path}\n"
                "  give a folder that `pretrainkit train` wrote, such as runs/NAME"
            ) from None
        if not isinstance(tree, dict) or not isinstance(tree.get("recipe"), str):
            raise DataError(f"{path} does not hold a config\n  it should name its recipe")
        return tree

    def summary(self) -> dict[str, Any]:
        """The numbers at the end of the run; empty where it has not ended."""
        try:
            return json.loads((self.path / SUMMARY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def remove_summary(self) -> None:
        """Remove what described the end of a run that continues."""
        for name in (SUMMARY, "samples.json"):
            (self.path / name).unlink(missing_ok=True)

    def provenance(self) -> dict[str, Any]:
        """Where each value of the config came from, versions, command; empty when missing. Raises DataError where the
        file is damaged."""
        path = self.path / PROVENANCE
        try:
            return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except ValueError as error:
            raise DataError(
                f"{path} is damaged: {error}\n"
                "  it only records where the config came from: restore it, or delete it to go on without"
            ) from None

    def event(self, step: int, kind: str, text: str) -> None:
        """Append to events.jsonl: started, resumed, changed, stopped, checkpoint, skipped, uncompiled,
        finished."""
        self._append(EVENTS, {"step": step, "event": kind, "text": text, "time": round(time.time(), 3)})

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append to eval.jsonl. NaN and infinity become null."""
        self._append(EVALUATIONS, {"step": step} | {name: json_value(value) for name, value in metrics.items()})

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Write what the model answers to some held-out examples after so many updates."""
        folder = self.path / SAMPLES
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from None
        self.write_json(f"{SAMPLES}/step-{step:08d}.json", list(samples))

    def write_json(self, name: str, value: Any) -> Path:
        """Write a small JSON file into the folder, whole or not at all."""
        _write(self.path / name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        return self.path / name

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        try:
            with open(self.path / name, "a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        except OSError as error:
            raise unwritable(self.path / name, error) from None


class EvaluationLog:
    """A file of lines {"step": n, "settings": ..., metric: value, ...}. Those made with other settings stay in it and
    are not looked at; a last line that a crash has torn is cut off. Raises DataError where the file holds something
    else."""

    def __init__(self, path: Path, settings: str) -> None:
        self.path, self.settings = path, settings
        self._rows = _read_evaluations(path)

    @property
    def metrics_by_step(self) -> dict[int, dict[str, float]]:
        """What is known with these settings, by ascending step."""
        known = {row["step"]: row for row in self._rows if row["settings"] == self.settings}
        names = {"step", "settings"}
        return {step: {k: v for k, v in known[step].items() if k not in names} for step in sorted(known)}

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line; the file is whole at any moment."""
        self._rows.append({"step": step, "settings": self.settings, **metrics})
        with atomic_file(self.path) as file:
            file.writelines((json.dumps(row, ensure_ascii=False) + "\n").encode() for row in self._rows)


def _read_evaluations(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    rows = []
    *lines, torn = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate([*lines, *([torn] if torn else [])], 1):
        try:
            row = json.loads(line)
            rows.append({"step": int(row["step"]), "settings": str(row["settings"])} | row)
        except (ValueError, KeyError, TypeError):
            if number > len(lines):
                break
            raise DataError(
                f"{path} holds something else than evaluations of checkpoints: see line {number}\n"
                "  give another file: --out FILE"
            ) from None
    return rows


def json_value(value: Any) -> Any:
    """`value`, or None for numbers that JSON lacks: NaN and infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def unwritable(path: Path, error: OSError) -> RunError:
    """What to say when a file of a run cannot be written any more, such as on a full disk."""
    return RunError(
        f"cannot write {path}: {error.strerror or error}\n"
        "  what was saved before is intact; make room or mend the folder, "
        f"then go on with: pretrainkit resume {quote(str(path.parent))}"
    )


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as file:
        file.write(text.encode())


def environment() -> dict[str, Any]:
    """Versions, platform, command line and code revision, for the provenance of a run."""
    return {
        "packages": dict(_packages()),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "command": " ".join(sys.argv),
        "git": _revision(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


@cache
def _packages() -> dict[str, str]:
    """Name to version of those that make or read what a run writes."""
    names = ("pretrainkit", "torch", "numpy", "sentencepiece", "tokenizers", "pydantic")
    return {name: installed_version(name) or "not installed as a package" for name in names}


def installed_version(package: str) -> str | None:
    """Return the version of a package; None: it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _revision() -> str | None:
    """The commit of the code, with '+changes' when the tree differs from it; None outside a checkout. A launcher that
    runs a copy of the code says what it is a copy of."""
    if launched := os.environ.get("PRETRAINKIT_REVISION"):
        return launched
    git = ["git", "-C", str(Path(__file__).resolve().parent)]
    try:
        commit, changes = (
            subprocess.run([*git, *words], capture_output=True, text=True, timeout=5, check=True).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changes else "")
