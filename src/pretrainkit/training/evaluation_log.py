"""Evaluations of many checkpoints as JSON lines, which an interrupted command goes on with. Torch-free."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrainkit.errors import DataError
from pretrainkit.files.manifest import atomic_file


class EvaluationLog:
    """A file of lines {"step": n, "settings": ..., metric: value, ...}. Those made with other settings stay in it and
    are not looked at; a last line that a crash has torn is cut off. Raises DataError where the file holds something
    else."""

    def __init__(self, path: Path, settings: str) -> None:
        self.path, self.settings = path, settings
        self._rows = _read(path)

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


def _read(path: Path) -> list[dict[str, Any]]:
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
