"""Services that show metrics and samples besides `metrics.jsonl`: TensorBoard, Weights & Biases, MLflow and trackio.

Each is a `Logger`. `LOGGERS` maps the names that `log.to` takes to functions that open one. Projects, addresses and
logins are those of each service: the environment variables that it reads, such as WANDB_ENTITY, MLFLOW_TRACKING_URI or
TRACKIO_DIR.
"""

import base64
import html
import io
import logging
import math
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import InputError, import_optional
from pretrainkit.training.watch import Sample

_logger = logging.getLogger(__name__)

Picture = NDArray[np.uint8]
"""uint8 (H, W, 3)."""


class LoggedRun(NamedTuple):
    """Information about a run for its loggers."""

    folder: Path
    project: str
    """Name of the project or experiment of which the run is a part."""
    resume_step: int
    """Number of updates before this process; 0: a new run."""
    config: Mapping[str, Any]


class Logger(Protocol):
    """One service. Rank 0 calls it, from one thread at a time."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Show values as of update number `step`."""

    def cells(self, step: int, cells: Mapping[str, str | Picture]) -> None:
        """Show texts and pictures of samples by name. `step` may be smaller than that of the last values."""

    def close(self) -> None:
        """Write all remaining values and close."""


class TensorBoard:
    """Event files in RUN/tensorboard."""

    def __init__(self, run: LoggedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # A run that stopped after its last checkpoint repeats some steps: hide their first points.
        purged = run.resume_step + 1 if run.resume_step else None
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purged)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def cells(self, step: int, cells: Mapping[str, str | Picture]) -> None:
        for name, cell in cells.items():
            if isinstance(cell, str):
                self._writer.add_text(name, cell, step)
            else:
                self._writer.add_image(name, cell, step, dataformats="HWC")

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, resumed under the id in RUN/wandb-run-id.txt. `wandb sync` sends offline runs."""

    def __init__(self, run: LoggedRun, *, is_offline: bool) -> None:
        name = "wandb-offline" if is_offline else "wandb"
        self._wandb = import_optional("wandb", "wandb", f"log.to=[{name}]")
        settings = self._wandb.Settings(silent=True, console="off", x_disable_stats=True, save_code=False)
        try:
            self._run = self._wandb.init(
                project=run.project,
                name=run.folder.name,
                id=_kept_id(run.folder / "wandb-run-id.txt", lambda: secrets.token_hex(4)),
                resume=None if is_offline else "allow",
                mode="offline" if is_offline else "online",
                dir=str(run.folder),
                config=dict(run.config),
                settings=settings,
            )
        except self._wandb.Error as error:
            raise InputError(
                f"log.to=[{name}]: Weights & Biases could not start: {error}\n"
                "  log in with `wandb login`, or use log.to=[wandb-offline] and `wandb sync` later"
            ) from error

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def cells(self, step: int, cells: Mapping[str, str | Picture]) -> None:
        page, image = self._wandb.Html, self._wandb.Image
        shown = {n: page(html.escape(cell)) if isinstance(cell, str) else image(cell) for n, cell in cells.items()}
        self._run.log(shown, commit=False)  # at the newest step: values of earlier steps are refused

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow, in the experiment of the project's name, resumed under the id in RUN/mlflow-run-id.txt."""

    def __init__(self, run: LoggedRun) -> None:
        mlflow = import_optional("mlflow", "mlflow", "log.to=[mlflow]")
        self._entities, self._refused = mlflow.entities, mlflow.MlflowException
        try:
            self._client = client = mlflow.MlflowClient()
            known = client.get_experiment_by_name(run.project)
            experiment = client.create_experiment(run.project) if known is None else known.experiment_id

            def new_id() -> str:
                return str(client.create_run(experiment, run_name=run.folder.name).info.run_id)

            self._id = _kept_id(run.folder / "mlflow-run-id.txt", new_id)
            client.update_run(self._id, status="RUNNING")
            client.log_dict(self._id, dict(run.config), "config.yaml")
        except mlflow.MlflowException as error:
            raise InputError(
                f"log.to=[mlflow]: MLflow could not start: {error}\n  set MLFLOW_TRACKING_URI to your server; or to a "
                "folder such as file:./mlruns, with MLFLOW_ALLOW_FILE_STORE=true; if this run was deleted there, "
                f"delete {run.folder / 'mlflow-run-id.txt'} too"
            ) from error

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        # Some of MLflow's stores refuse NaN; its folders cannot hold both `grad_norm` and `grad_norm/layers.0`.
        named = {name.replace("/", "."): value for name, value in values.items() if math.isfinite(value)}
        metrics = [self._entities.Metric(name, value, now, step) for name, value in named.items()]
        with self._warning(step):
            self._client.log_batch(self._id, metrics=metrics)

    def cells(self, step: int, cells: Mapping[str, str | Picture]) -> None:
        texts = {name: cell for name, cell in cells.items() if isinstance(cell, str)}
        with self._warning(step):
            if texts:
                self._client.log_dict(self._id, texts, f"samples/step-{step:08d}.json")
            for name, cell in cells.items():
                if not isinstance(cell, str):
                    self._client.log_image(self._id, cell, key=name.replace("/", "."), step=step)

    @contextmanager
    def _warning(self, step: int) -> Iterator[None]:
        """Context in which a server that fails does not end the run, because the run's own files have all values."""
        try:
            yield
        except self._refused as error:
            _logger.warning("MLflow did not take values of step %d, which are in the run folder: %s", step, error)

    def close(self) -> None:
        with suppress(self._refused):
            self._client.set_terminated(self._id)


class Trackio:
    """A run of trackio, shown by `trackio show`; on this machine, unless TRACKIO_SPACE_ID names a Space."""

    def __init__(self, run: LoggedRun) -> None:
        self._trackio = import_optional("trackio", "trackio", "log.to=[trackio]")
        name = _kept_id(run.folder / "trackio-run-name.txt", lambda: f"{run.folder.name}-{secrets.token_hex(3)}")
        settings = {"config": dict(run.config), "resume": "allow", "embed": False, "auto_log_gpu": False}
        # In a context of its own: at exit, trackio finishes the run of the main context, with a message.
        with redirect_stdout(sys.stderr):  # it prints, and standard output may be JSON
            self._run = copy_context().run(self._trackio.init, project=run.project, name=name, **settings)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def cells(self, step: int, cells: Mapping[str, str | Picture]) -> None:
        text, image = self._trackio.Markdown, self._trackio.Image
        self._run.log({n: text(c) if isinstance(c, str) else image(c) for n, c in cells.items()}, step=step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()


LOGGERS: Mapping[str, Callable[[LoggedRun], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": lambda run: WeightsAndBiases(run, is_offline=False),
    "wandb-offline": lambda run: WeightsAndBiases(run, is_offline=True),
    "mlflow": MLflow,
    "trackio": Trackio,
}
"""Name in `log.to` to a function that opens the logger. It raises MissingPackageError or InputError if the service is
not installed or cannot start."""


def cells_of(samples: Sequence[Sample]) -> Iterator[tuple[str, str | Picture]]:
    """Yield texts and pictures under the names samples/COLUMN/NUMBER. Several items of one cell have a number each.
    Raises MissingPackageError if there are pictures and Pillow is not installed."""
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


def _pixels(uri: str) -> Picture:
    pillow = import_optional("PIL.Image", "vision", "a picture of a sample", package="pillow")
    with pillow.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        return np.asarray(image.convert("RGB"))


def _kept_id(path: Path, create: Callable[[], str]) -> str:
    """Return the id that a service has for the run, which is created once and kept in a file of the run."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(create() + "\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()
