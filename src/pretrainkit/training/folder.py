"""The run folder: all files of one training in one place, readable without pretrainkit."""

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

from pretrainkit.config.paths import moved_paths, record_beside
from pretrainkit.config.yaml import dump_yaml, parse_yaml
from pretrainkit.errors import DataError, InputError, RunError
from pretrainkit.files.manifest import atomic_file, read_object, write_text
from pretrainkit.training.run import RunConfig
from pretrainkit.training.watch import Sample

CONFIG, PROVENANCE, EVENTS, EVALUATIONS = "config.yaml", "provenance.json", "events.jsonl", "eval.jsonl"
SUMMARY = "summary.json"
"""Written last: a run is complete if the step in it is that of the newest checkpoint."""
SAMPLES = "samples"
"""Folder of the model's answers during training, one file for each evaluation."""


class RunFolder:
    """Paths and small files of a run. Only rank 0 writes."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def cache(self) -> Path:
        """Folder for data that can be computed again."""
        return self.path / "cache"

    @property
    def exists(self) -> bool:
        """True if a run was started here."""
        return (self.path / CONFIG).is_file()

    @property
    def has_checkpoint(self) -> bool:
        """True if anything was saved here. It may be damaged, which the checkpoint store checks."""
        return any(self.checkpoints.glob("step-*"))

    def require_new(self) -> None:
        """Raise InputError if the folder contains a run with checkpoints, or anything other than a run."""
        if self.has_checkpoint:
            raise InputError(
                f"{self.path} already contains a run\n  resume it with: pretrainkit resume {quote(str(self.path))}\n"
                "  or choose another folder: --out FOLDER"
            )
        has_only_lock = self.checkpoints.is_dir() and {entry.name for entry in self.checkpoints.iterdir()} <= {".lock"}
        of_unstarted = {"logs", "cache", "launch", f".{CONFIG}.partial", *(["checkpoints"] if has_only_lock else [])}
        if self.path.is_dir() and not self.exists and not {entry.name for entry in self.path.iterdir()} <= of_unstarted:
            raise InputError(f"{self.path} contains something other than a run\n  choose a new folder: --out FOLDER")

    def prepare(self) -> None:
        """Create the folder for a new run. Files of a run that never saved a checkpoint are deleted, except its config,
        which shows after a kill that the folder is a run's, and which `record` replaces. Raises InputError like
        `require_new`, or if the folder cannot be written."""
        self.require_new()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            old = (PROVENANCE, EVENTS, EVALUATIONS, SUMMARY, "samples.json", "skipped-*.json")
            for name in (*old, f"{SAMPLES}/step-*.json"):
                for left in self.path.glob(name):
                    left.unlink()
        except OSError as error:
            raise InputError(
                f"cannot write the run folder {self.path}\n  {error}\n  choose another folder: --out FOLDER"
            ) from None

    def discard(self) -> None:
        """Remove a folder that `prepare` created, if it contains nothing except an empty `checkpoints` folder."""
        with suppress(OSError):
            if self.checkpoints.is_dir():
                (self.checkpoints / ".lock").unlink(missing_ok=True)
                self.checkpoints.rmdir()
            self.path.rmdir()

    def record(self, config: RunConfig, provenance: Mapping[str, Any]) -> None:
        """Write config and provenance. Raises DataError if they cannot be written."""
        write_text(self.path / CONFIG, dump_yaml(config.model_dump(mode="json")))
        self.write_json(PROVENANCE, provenance)

    def config_tree(self) -> dict[str, Any]:
        """Return the resolved config as nested plain values, with the present paths of files that were moved together
        with the run. Raises DataError if this is not a run folder."""
        path = self.path / CONFIG
        try:
            tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{self.path} is not a run folder: {getattr(error, 'strerror', None) or error}: {path}\n"
                "  use a folder that `pretrainkit train` wrote, such as runs/NAME"
            ) from None
        if not isinstance(tree, dict) or not isinstance(tree.get("recipe"), str):
            raise DataError(f"{path} names no recipe, so it is not a config\n  restore it from a copy")
        return moved_paths(tree, record_beside(path).get("folder"), self.path)

    def summary(self) -> dict[str, Any]:
        """Return the values at the end of the run; empty if it has not ended."""
        try:
            return read_object(self.path / SUMMARY)
        except DataError:
            return {}

    def remove_summary(self) -> None:
        """Remove the files that describe the end of a run, because the run continues."""
        for name in (SUMMARY, "samples.json"):
            (self.path / name).unlink(missing_ok=True)

    def provenance(self) -> dict[str, Any]:
        """Return the source of each config value, versions and command; empty if the file is missing. Raises DataError
        if it is damaged."""
        path = self.path / PROVENANCE
        fix = "it only records where the config came from: restore it, or delete it to continue without it"
        return read_object(path, fix) if path.is_file() else {}

    def event(self, step: int, kind: str, text: str) -> None:
        """Append to events.jsonl: started, resumed, changed, stopped, checkpoint, skipped, uncompiled,
        finished."""
        self._append(EVENTS, {"step": step, "event": kind, "text": text, "time": round(time.time(), 3)})

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append to eval.jsonl. NaN and infinity become null."""
        self._append(EVALUATIONS, {"step": step} | {name: json_value(value) for name, value in metrics.items()})

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Write the model's answers to some held-out examples after `step` updates."""
        folder = self.path / SAMPLES
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from None
        self.write_json(f"{SAMPLES}/step-{step:08d}.json", list(samples))

    def write_json(self, name: str, value: Any) -> Path:
        """Write a small JSON file into the folder, atomically."""
        write_text(self.path / name, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        return self.path / name

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        try:
            with open(self.path / name, "a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        except OSError as error:
            raise unwritable(self.path / name, error) from None


class EvaluationLog:
    """A file of lines {"step": n, "settings": ..., metric: value, ...}. Lines with other settings are kept but not
    used. An incomplete last line after a crash is dropped. Raises DataError if the file contains anything else."""

    def __init__(self, path: Path, settings: str) -> None:
        self.path, self.settings = path, settings
        self._rows = _read_evaluations(path)

    @property
    def metrics_by_step(self) -> dict[int, dict[str, float]]:
        """Metrics of evaluations with these settings, by ascending step."""
        known = {row["step"]: row for row in self._rows if row["settings"] == self.settings}
        names = {"step", "settings"}
        return {
            step: {k: math.nan if v is None else v for k, v in known[step].items() if k not in names}
            for step in sorted(known)
        }

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line. The file is complete at any moment."""
        self._rows.append({"step": step, "settings": self.settings} | {k: json_value(v) for k, v in metrics.items()})
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
                f"{path} contains something other than evaluations of checkpoints: see line {number}\n"
                "  choose another file: --out FILE"
            ) from None
    return rows


def json_value(value: Any) -> Any:
    """Return `value`, or None for numbers that JSON does not have: NaN and infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def unwritable(path: Path, error: OSError) -> RunError:
    """Return the error for a file of a run that can no longer be written, such as on a full disk."""
    return RunError(
        f"cannot write {path}: {error.strerror or error}\n"
        "  everything saved before is intact; free some space or fix the folder, "
        f"then resume with: pretrainkit resume {quote(str(path.parent))}"
    )


def environment() -> dict[str, Any]:
    """Return versions, platform, command line and code revision for the provenance of a run."""
    return {
        "packages": dict(_packages()),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "command": " ".join(sys.argv),
        "git": _revision(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


@cache
def processor_name() -> str:
    """Return the model of this machine's processor, or its architecture if the system does not report it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def _packages() -> dict[str, str]:
    """Return the versions of the packages that write or read the files of a run."""
    names = ("pretrainkit", "torch", "numpy", "sentencepiece", "tokenizers", "pydantic")
    return {name: installed_version(name) or "not installed as a package" for name in names}


def installed_version(package: str) -> str | None:
    """Return the version of a package; None: it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _revision() -> str | None:
    """Return the commit of the code, with '+changes' if the working tree differs; None outside a checkout. A launcher
    that runs a copy of the code sets the revision in the environment."""
    if launched := os.environ.get("PRETRAINKIT_REVISION"):
        return launched
    place = Path(__file__).resolve()
    # Without locks: a kill during `git status` would leave index.lock in the checkout, and git would refuse to work.
    git = ["git", "--no-optional-locks", "-C", str(place.parent)]
    # An installed package may be in the folder of another project, whose commit is not that of the code.
    questions = (("ls-files", "--error-unmatch", place.name), ("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
    try:
        _, commit, changes = (
            subprocess.run([*git, *words], capture_output=True, text=True, timeout=5, check=True).stdout.strip()
            for words in questions
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changes else "")
