"""Training curves of a run: `metrics.jsonl`, and optionally TensorBoard and Weights & Biases. Rank 0 writes them.

A line is {"step": n, ...}: the values measured up to update number n. The first update has number 1, because a
checkpoint at step n has made n updates. A run that resumes at step n keeps the lines up to n and deletes later ones,
which it will write again.
"""

import base64
import html
import io
import json
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError, InputError, import_optional
from pretrainkit.files.manifest import atomic_file
from pretrainkit.training.folder import json_value, unwritable
from pretrainkit.training.run import LogConfig
from pretrainkit.training.watch import Sample

_log = logging.getLogger(__name__)


class MetricsLog:
    """Writes metrics wherever the config says. A run has one, on rank 0; close it."""

    def __init__(
        self, folder: Path, config: LogConfig, resume_step: int = 0, *, run_config: Mapping[str, Any] | None = None
    ) -> None:
        """Open the logs of a run folder after `resume_step` updates; 0: a new run.

        `run_config` is shown on the page of Weights & Biases. Raises MissingPackageError or InputError if that is not
        installed or cannot start, and DataError if the folder cannot be written.
        """
        self._tensorboard = None
        if config.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            # A run that stopped after its last checkpoint repeats some steps: hide their first points.
            purged = resume_step + 1 if resume_step else None
            self._tensorboard = SummaryWriter(str(folder / "tensorboard"), purge_step=purged)
        self._wandb = _open_wandb(folder, config, run_config) if config.wandb != "off" else None
        self._path = folder / "metrics.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            cut_after(self._path, resume_step)
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise DataError(f"cannot write {self._path}: {error.strerror}\n  choose another output folder") from error

    @property
    def last(self) -> dict[str, float]:
        """Return the values of the newest line; empty if there is none."""
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return {name: value for name, value in json.loads(lines[-1]).items() if name != "step"} if lines else {}

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
        """Show values in TensorBoard and Weights & Biases only, such as an evaluation, which has its own file."""
        if self._tensorboard is not None:
            for name, number in numbers.items():
                self._tensorboard.add_scalar(name, number, step)
        if self._wandb is not None:
            self._wandb.log(dict(numbers), step=step)

    def show(self, step: int, samples: Sequence[Sample]) -> None:
        """Show examples with the model's answers, pictures and texts, in TensorBoard and Weights & Biases."""
        if self._tensorboard is None and self._wandb is None:
            return
        shown = list(cells(samples))
        if self._tensorboard is not None:
            for name, cell in shown:
                if isinstance(cell, str):
                    self._tensorboard.add_text(name, cell, step)
                else:
                    self._tensorboard.add_image(name, cell, step, dataformats="HWC")
        if self._wandb is not None:
            from wandb import Html, Image

            drawn = {n: Html(html.escape(cell)) if isinstance(cell, str) else Image(cell) for n, cell in shown}
            self._wandb.log(drawn, commit=False)  # added to the newest step: earlier ones are closed

    def close(self) -> None:
        with suppress(OSError):  # a failed write left data in the buffer, which fails again; `write` has reported it
            self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def cells(samples: Sequence[Sample]) -> Iterator[tuple[str, str | NDArray[np.uint8]]]:
    """Yield texts and pictures, uint8 (H, W, 3), with names samples/COLUMN/NUMBER. If a cell has several items, each
    name gets a number. Raises MissingPackageError if there are pictures and Pillow is not installed."""
    for number, sample in enumerate(samples, 1):
        for column, value in sample.items():
            name = f"samples/{column}/{number}"
            if isinstance(value, str):
                yield name, value
                continue
            for place, item in enumerate(value, 1):
                own = name if len(value) == 1 else f"{name}.{place}"
                if item.get("image"):
                    yield own, _pixels(item["image"])
                elif item.get("text"):
                    yield own, str(item["text"])


def _pixels(uri: str) -> NDArray[np.uint8]:
    pillow = import_optional("PIL.Image", "vision", "a picture of a sample", package="pillow")
    with pillow.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        return np.asarray(image.convert("RGB"))


def cut_after(path: Path, resume_step: int) -> None:
    """Drop lines after `resume_step`, an incomplete last line, and invalid lines."""
    if not path.exists():
        return
    kept: list[str] = []
    num_broken = 0
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for line in lines[:-1]:  # behind the last newline is nothing, or a line that a crash has cut off
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


def _open_wandb(folder: Path, config: LogConfig, run_config: Mapping[str, Any] | None) -> Any:
    wandb = import_optional("wandb", "wandb", f"log.wandb={config.wandb}")
    id_path = folder / "wandb-run-id.txt"
    folder.mkdir(parents=True, exist_ok=True)
    if not id_path.exists():
        id_path.write_text(secrets.token_hex(4) + "\n", encoding="ascii")
    try:
        return wandb.init(
            project=config.wandb_project,
            name=folder.name,
            id=id_path.read_text(encoding="ascii").strip(),
            resume="allow" if config.wandb == "online" else None,
            mode="online" if config.wandb == "online" else "offline",
            dir=str(folder),
            config=dict(run_config or {}),
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, save_code=False),
        )
    except wandb.Error as error:
        raise InputError(
            f"log.wandb={config.wandb}: Weights & Biases could not start: {error}\n"
            "  log in with `wandb login`, or use log.wandb=offline and `wandb sync` later"
        ) from error
