"""Training curves of a run: `metrics.jsonl`, and the services that `log.to` names. Rank 0 writes them.

A line is {"step": n, ...}: the values measured up to update number n. The first update has number 1, because a
checkpoint at step n has made n updates. A run that resumes at step n keeps the lines up to n and deletes later ones,
which it will write again.
"""

import json
import logging
import math
import os
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
_NUM_EARLIER = 100
"""Number of lines that a run remembers when it resumes; `Spikes` compares a loss with fewer."""
_TAIL_BYTES = 1 << 20
"""Number of bytes at the end of a log that are read when a run resumes; more if too few lines of them remain."""


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
            self.earlier = cut_after(self._path, resume_step)[-_NUM_EARLIER:]
            """The last lines up to `resume_step`, each with its step."""
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise DataError(f"cannot write {self._path}: {error.strerror}\n  choose another output folder") from error

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


def cut_after(path: Path, resume_step: int) -> list[dict[str, Any]]:
    """Drop lines after `resume_step`, an incomplete last line, and invalid lines. Return the last lines that remain.

    A log may have millions of lines, so only its end is read. Invalid lines further up remain; reports skip them.
    """
    if not path.exists():
        return []
    span = _TAIL_BYTES
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        while True:
            file.seek(max(0, size - span))
            if span < size:
                file.readline()  # the end of a line that begins before the span
            begin, content = file.tell(), file.read()
            *lines, _ = content.split(b"\n")  # after the last newline, nothing or a line that a crash cut off
            rows = [_row(line) for line in lines]
            kept = [number for number, row in enumerate(rows) if row is not None and row["step"] <= resume_step]
            if len(kept) >= _NUM_EARLIER or not begin:
                break
            span *= 4
        if num_broken := rows.count(None):
            _log.warning("%s: dropped %d broken lines", path, num_broken)
        left = b"".join(lines[number] + b"\n" for number in kept)
        if content.startswith(left):
            file.truncate(begin + len(left))
        else:  # there are invalid lines between those that are kept
            file.seek(0)
            with atomic_file(path) as whole:
                whole.write(file.read(begin) + left)
    return [row for row in (rows[number] for number in kept) if row is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    """Return the content of a line; None if it is not an object with a step."""
    try:
        row: dict[str, Any] = json.loads(line)
        return row if row["step"] <= math.inf else None
    except (ValueError, KeyError, TypeError):
        return None
