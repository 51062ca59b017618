"""Number of steps for a given time, from a short trial on the data and device of a run: `pretrainkit train --hours`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from pretrainkit.config.loader import Origins, flatten, nested
from pretrainkit.errors import InputError
from pretrainkit.files.outputs import folder_beside
from pretrainkit.running.configs import recorded_config
from pretrainkit.running.run import num_ranks, run_training
from pretrainkit.training.folder import RunFolder
from pretrainkit.training.run import RunConfig
from pretrainkit.training.watch import Watcher

TRIAL_SECONDS = 20.0
_TRIAL_SHARE = 0.1
"""Maximum share of the hours for a trial."""
_MAX_STEPS = 10_000_000
"""Maximum number of steps of a trial; normally it ends after its time."""
_NUM_UNTIMED_STEPS = 2
"""Number of first steps that are not timed, because they allocate memory and may compile."""
_MIN_TIMED_STEPS = 3
"""Minimum number of timed steps of a trial."""
_EVALUATIONS = 10
_EVALUATION_SHARE = 0.2
"""Maximum share of the hours for evaluations; there is always at least one."""
_WARMUP_SHARE = 0.1
"""Maximum share of the steps for a warm-up that the user did not set."""
_PLANNED = "--hours {:g}"
"""Beginning of the origin of a value that was computed from the hours."""


def require_hours(hours: float) -> None:
    """Raise InputError if `hours` is not a possible duration of a run."""
    if not 0 < hours < math.inf:
        raise InputError(f"--hours is {hours:g}\n  use a positive number, such as --hours 0.5")


def with_steps_for(
    config: RunConfig, origins: Origins, hours: float, folder: RunFolder, watcher: Watcher, device: str | None
) -> tuple[RunConfig, Origins]:
    """Return the config with as many steps as fit into `hours` on this device, and the origins of its values.

    A run that was started before keeps its number of steps. Otherwise a trial of at most 20 seconds trains on the real
    data in a temporary folder. There are ten evaluations and checkpoints, or fewer where evaluating takes long, and the
    warm-up is at most a tenth of the steps, unless the user wrote these settings. data.num_epochs limits the steps.

    Raises:
        InputError: Impossible hours, several ranks, a number of steps that the user wrote, or a run that was started
            with other hours.
    """
    require_hours(hours)
    if num_ranks() > 1:
        raise InputError(
            f"--hours measures the speed of one process, but this run has {num_ranks()}\n"
            "  leave out --hours and set num_steps=N; pretrainkit plan estimates the time"
        )
    if config.num_steps is not None and _is_from_user("num_steps", origins):
        raise InputError(
            f"num_steps={config.num_steps} ({origins['num_steps']}) and --hours {hours:g} both define the length of "
            "the run\n  leave out --hours, or remove num_steps"
        )
    if folder.has_checkpoint:
        return _as_started(config, origins, hours, folder)
    trial = _measure(config, hours, folder.path, watcher, device)
    evaluations = max(1, min(_EVALUATIONS, int(_EVALUATION_SHARE * 3600 * hours / max(trial.evaluation_seconds, 1e-9))))
    seconds = 3600 * hours - (evaluations + 1) * trial.evaluation_seconds
    num_steps = min(max(1, int(seconds / trial.step_seconds)), trial.max_steps)
    limit = f"; data.num_epochs={config.data.num_epochs:g} ends it earlier" if num_steps == trial.max_steps else ""
    reason = f"{_PLANNED.format(hours)}: a step took {trial.step_seconds:.3g} s in a trial{limit}"
    watcher.event(0, "trial", f"{num_steps:,} steps for {reason}")
    every_steps = max(1, math.ceil(num_steps / evaluations))
    planned: dict[str, int | None] = {"num_steps": num_steps}
    for part in ("evaluate", "checkpoint"):
        if not any(_is_from_user(f"{part}.{name}", origins) for name in ("every_steps", "every_epochs")):
            planned[f"{part}.every_steps"] = every_steps
    warmup = config.schedule.warmup_steps(num_steps)
    if warmup > _WARMUP_SHARE * num_steps and not _is_from_user("schedule.num_warmup_steps", origins):
        planned["schedule.num_warmup_steps"] = int(_WARMUP_SHARE * num_steps)
    return _with_planned(config, planned), {**origins, **dict.fromkeys(planned, reason)}


def _with_planned(config: RunConfig, planned: Mapping[str, int | None]) -> RunConfig:
    """Return the config with the values of `planned`, which are named by dotted path."""
    if "evaluate.every_steps" in planned:
        planned = {**planned, "evaluate.every_epochs": None}
    return config.changed(**nested(planned))


def _is_from_user(path: str, origins: Mapping[str, str]) -> bool:
    """True if a user wrote the value."""
    return not origins.get(path, "default").startswith(("preset ", "default", "adjusted"))


def _as_started(config: RunConfig, origins: Origins, hours: float, folder: RunFolder) -> tuple[RunConfig, Origins]:
    """Return the config with the steps and intervals of the run that is resumed."""
    before, sources = recorded_config(folder.config_tree()).config, folder.provenance().get("sources", {})
    beginning = sources.get("num_steps", "")
    if not beginning.startswith(f"{_PLANNED.format(hours)}:"):
        planned = beginning.partition(":")[0] if beginning.startswith("--hours ") else f"num_steps={before.num_steps}"
        path = quote(str(folder.path))
        raise InputError(
            f"{folder.path} was started with {planned}, not with --hours {hours:g}\n"
            f"  resume it with this length: pretrainkit resume {path}\n"
            f"  or with another length: pretrainkit resume {path} num_steps={2 * before.total_steps}"
        )
    values = flatten(before.model_dump(mode="json"))
    planned = {path: origin for path, origin in sources.items() if origin.startswith("--hours ")}
    return _with_planned(config, {path: values[path] for path in planned}), {**origins, **planned}


class _TrialEnded(Exception):
    """Raised to end a trial."""


class _Clock(Watcher):
    """Measures the steps and the first evaluation of a trial, and ends it."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._began = seconds, 0.0
        self.evaluation_seconds, self.max_steps = 0.0, 0
        self._times: list[float] = []

    def started(self, info: Mapping[str, Any]) -> None:
        self._began, self.max_steps = time.perf_counter(), info["num_steps"]

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == 0:
            self.evaluation_seconds = time.perf_counter() - self._began

    def stepped(self, step: int, num_steps: int) -> None:
        self._times.append(time.perf_counter())
        num_timed = len(self._times) - 1 - _NUM_UNTIMED_STEPS
        if num_timed >= _MIN_TIMED_STEPS and self._times[-1] - self._times[0] >= self._seconds:
            raise _TrialEnded

    @property
    def step_seconds(self) -> float:
        """Mean duration of a step. The first, slower steps do not count if others follow them."""
        first = min(_NUM_UNTIMED_STEPS, max(0, len(self._times) - 2))
        if len(self._times) < 2:
            return self._times[0] - self._began
        return (self._times[-1] - self._times[first]) / (len(self._times) - 1 - first)


def _measure(config: RunConfig, hours: float, out: Path, watcher: Watcher, device: str | None) -> _Clock:
    """Train for a short time in a temporary folder beside `out`."""
    seconds = min(TRIAL_SECONDS, 3600 * hours * _TRIAL_SHARE)
    watcher.event(0, "trial", f"measuring the speed of a step on this machine: {seconds:.0f} s, and an evaluation")
    has_limit = config.data.num_epochs is not None
    trial = config.changed(
        num_steps=None if has_limit else _MAX_STEPS,
        schedule={"num_warmup_steps": min(1, config.schedule.num_warmup_steps), "warmup_share": None},
        checkpoint={"every_steps": _MAX_STEPS},
        evaluate={"every_steps": _MAX_STEPS, "every_epochs": None, "before_training": config.has_held_out_data},
        log={"every_steps": 1, "tensorboard": False, "wandb": "off"},  # logging waits for the device
    )
    clock = _Clock(seconds)
    with folder_beside(out.absolute()) as folder, suppress(_TrialEnded):
        run_training(trial, RunFolder(folder / "run"), {}, clock, device, resuming=False)
    if not has_limit:
        clock.max_steps = _MAX_STEPS
    return clock
