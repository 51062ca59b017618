"""Training curves of a run: `metrics.jsonl`, and the services that `log.to` names. Rank 0 writes them.

A line is {"step": n, ...}: the values measured up to update number n. The first update has number 1, because a
checkpoint at step n has made n updates. A run that resumes at step n keeps the lines up to n and deletes later ones,
which it will write again.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file
from pretrainkit.training.folder import json_value, unwritable
from pretrainkit.training.loggers import LOGGERS, LoggedRun, cells_of
from pretrainkit.training.run import LogConfig
from pretrainkit.training.watch import Sample

_log = logging.getLogger(__name__)


class MetricsLog:
    """Writes metrics wherever the config says. A run has one, on rank 0; close it."""

    def __init__(
        self, folder: Path, config: LogConfig, resume_step: int = 0, *, run_config: Mapping[str, Any] | None = None
    ) -> None:
        """Open the logs of a run folder after `resume_step` updates; 0: a new run.

        `run_config` is shown by the services of `log.to`. Raises MissingPackageError or InputError if one of them is
        not installed or cannot start, and DataError if the folder cannot be written.
        """
        run = LoggedRun(folder, config.project, resume_step, run_config or {})
        self._loggers = [LOGGERS[name](run) for name in config.to]
        self._path = folder / "metrics.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            cut_after(self._path, resume_step)
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise DataError(f"cannot write {self._path}: {error.strerror}\n  choose another output folder") from error

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return all lines of the file, each with its step."""
        return [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]

    @property
    def last(self) -> dict[str, float]:
        """Return the values of the newest line; empty if there is none."""
        rows = self.rows
        return {name: value for name, value in rows[-1].items() if name != "step"} if rows else {}

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Record values as of update number `step`. When this returns, the line is in the file, with NaN and infinity
        as null. Raises RunError if the file cannot be written, such as on a full disk."""
        line = {"step": step} | {name: json_value(number) for name, number in numbers.items()}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise unwritable(self._path, error) from None
        self.draw(step, numbers)

    def draw(self, step: int, numbers: Mapping[str, float]) -> None:
        """Show values in the services of `log.to` only, such as an evaluation, which has its own file."""
        for logger in self._loggers:
            logger.scalars(step, numbers)

    def show(self, step: int, samples: Sequence[Sample]) -> None:
        """Show examples with the model's answers, pictures and texts, in the services of `log.to` only."""
        shown = dict(cells_of(samples)) if self._loggers else {}
        for logger in self._loggers:
            logger.cells(step, shown)

    def close(self) -> None:
        # After a failed write, which `write` reported, closing fails again on the data in the buffer.
        with suppress(OSError):
            self._file.close()
        for logger in self._loggers:
            logger.close()


def cut_after(path: Path, resume_step: int) -> None:
    """Drop lines after `resume_step`, an incomplete last line, and invalid lines."""
    if not path.exists():
        return
    kept: list[str] = []
    num_broken = 0
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for line in lines[:-1]:  # after the last newline there is nothing, or a line that a crash cut off
        try:
            is_kept = json.loads(line)["step"] <= resume_step
        except (ValueError, KeyError, TypeError):
            num_broken += 1
            continue
        if is_kept:
            kept.append(line)
    if num_broken:
        _log.warning("%s: dropped %d broken lines", path, num_broken)
    if kept == lines[:-1] and not lines[-1]:
        return
    with atomic_file(path) as file:
        file.writelines(f"{line}\n".encode() for line in kept)
