"""Launches by `train` and `resume` with `--launch`."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import typer

from pretrainkit import api
from pretrainkit.cli.options import Asked
from pretrainkit.config.loader import config_from_overrides
from pretrainkit.config.paths import absolute_paths, paths_here
from pretrainkit.config.yaml import dump_yaml
from pretrainkit.errors import ConfigError, InputError
from pretrainkit.launch.cloud import CloudConfig, launch_run
from pretrainkit.launch.folder import Launch, LaunchFolder, launched_runs
from pretrainkit.launch.local import launch_local
from pretrainkit.launch.slurm import living_job, require_idle, submit
from pretrainkit.training.folder import RunFolder, environment
from pretrainkit.workers.slurm_config import SlurmConfig


def _new_launch(asked: Asked, words: Sequence[str], again: Sequence[str], settings: dict[str, Any]) -> Launch:
    return Launch(
        kind=asked.launch,  # type: ignore[arg-type]
        words=tuple(words),
        words_again=tuple(again),
        num_nodes=asked.nodes,
        processes_per_node=asked.processes_per_node,
        gpus_per_node=asked.gpus_per_node,
        max_restarts=asked.max_restarts,
        settings=settings,
        code=environment(),
    )


def start(asked: Asked, words: list[str], again: list[str], run: Path) -> None:
    """Start `pretrainkit WORDS` as the options ask, where `again` are the words after an interruption.

    Local ranks are waited for, and this process exits with their exit code; a job is left to its scheduler.
    """
    settings: dict[str, Any] = {}
    if asked.launch == "slurm":
        settings = config_from_overrides(SlurmConfig, asked.slurm, "--slurm").model_dump(mode="json")
    elif asked.launch == "cloud":
        settings = config_from_overrides(CloudConfig, asked.cloud, "--cloud").model_dump(mode="json")
    launch = _new_launch(asked, words, again, settings)
    if not asked.dry_run:
        launch_again(run, launch)
        return

    commands = launch_run(run, launch, dry_run=True)  # nothing else has a dry run
    show_dry_run(commands, LaunchFolder(run).path / "task.yaml")


def show_dry_run(commands: Sequence[Sequence[str]], task: Path | None = None) -> None:
    """Print the task file and the commands that a cloud would be given."""
    if task is not None:
        print(task.read_text(encoding="utf-8"))
    for command in commands:
        print("$ " + shlex.join(command))


def start_frozen(
    asked: Asked, resolved: Any, run: Path, device: str | None, *, resume: bool = False, as_json: bool = False
) -> None:
    """Hand a config to a launcher as it is now. When that refuses it, a folder made here goes again. Jobs always
    `resume` where there is a checkpoint already, and speak in lines of JSON."""
    is_new = not run.exists()
    # What trains or waits shall find the config it was launched with.
    LaunchFolder(run).require_free()
    if asked.launch == "slurm":
        require_idle(LaunchFolder(run))
    if asked.launch == "cloud" and (found := list(paths_here(resolved.config))):
        raise ConfigError(
            f"{name}: {path} lies on this machine, and those of a cloud do not see it\n"
            "  put it into the bucket, and name it as they do: /bucket/...; or, where they share a file system with "
            "this machine, give the whole path"
            for name, path in found
        )
    try:
        is_local = asked.launch == "local"
        again = frozen_words(resolved, run, device, as_json=as_json or not is_local)
        first = [word for word in again if word != "--resume"] if is_local and not resume else again
        start(asked, first, again, run)
    except (InputError, typer.Exit) as error:
        if is_new and (isinstance(error, InputError) or error.exit_code == 2):
            LaunchFolder(run).discard()
        raise


def launch_again(run: Path, launch: Launch) -> None:
    """Begin a launch, new or as it was before."""
    if launch.kind == "slurm":
        (job_id,) = submit([run], [launch], run, name=f"pretrainkit-{run.name}")
        print(f"job {job_id} trains in {run}")
        print(f"  pretrainkit launch status {run}   or logs, cancel, resume")
        return
    if launch.kind == "cloud":
        launch_run(run, launch)
        print(f"{run.name} trains in {launch.settings['bucket']}/runs/{run.name}")
        print(f"  pretrainkit launch status {run}   or cancel, resume")
        return

    raise typer.Exit(launch_local(launch, run))


def frozen_words(resolved: Any, run: Path, device: str | None, *, as_json: bool = True) -> list[str]:
    """Return the arguments that train or resume exactly this config, whatever happens to presets, files and folders.

    The config is written to `RUN/launch/config.yaml`, and beside it where each of its values came from.
    """
    LaunchFolder(run.absolute()).prepare()
    folder = LaunchFolder(run.absolute()).path
    config, origins = folder / "config.yaml", folder / "origins.json"
    config.write_text(dump_yaml(absolute_paths(resolved.config).model_dump(mode="json")), encoding="utf-8")
    origins.write_text(json.dumps(resolved.origins, indent=2) + "\n", encoding="utf-8")
    words = ["train", str(config), "--origins", str(origins), "--out", str(run.absolute()), "--resume"]
    return [*words, *(["--json"] if as_json else []), *(["--device", device] if device else [])]


_COMMA = re.compile(r",(?![^\[{]*[\]}])")
"""Not within [...] or {...}."""


def sweep_settings(sweep: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Name and settings of every run of `--sweep path=a,b --sweep other=c,d`: all combinations.

    A value may be a list, `path=[a,b],[c]`. In names, what a file system takes for something else is a line: `_`.
    Raises ConfigError where a word has no path or values, or two runs have one name."""
    axes = []
    for word in sweep:
        path, equals, values = word.partition("=")
        choices = [value for value in _COMMA.split(values) if value]
        if not path or not equals or not choices:
            raise ConfigError(f"--sweep {word!r} names no values\n  write it like --sweep optimizer.peak_lr=1e-4,3e-4")
        axes.append([(path, value) for value in choices])
    found = [
        (
            ",".join(re.sub(r"[^\w.+=,-]+", "_", f"{path.rpartition('.')[2]}={value}") for path, value in chosen),
            [f"{path}={value}" for path, value in chosen],
        )
        for chosen in product(*axes)
    ]
    names = [name for name, _ in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"--sweep makes two runs of the name {twice}\n  give each value once")
    return found


def start_sweep(asked: Asked, source: str, settings: list[str], out: Path, device: str | None) -> None:
    """Submit a run for each combination of values as an array of jobs; each has a folder of its own in `out`."""
    slurm = config_from_overrides(SlurmConfig, asked.slurm, "--slurm").model_dump(mode="json")
    chosen = [
        (out / name, api.resolve_config(source, [*settings, *more])) for name, more in sweep_settings(asked.sweep)
    ]
    for run, resolved in chosen:
        api.check_config(resolved.config, asked.world_size)
        resolved.config.parallel.require_ranks(asked.world_size)
        if LaunchFolder(run).launches() or RunFolder(run).has_checkpoint:
            raise InputError(
                f"{run} already holds a run\n"
                f"  resume the sweep: pretrainkit launch resume {shlex.quote(str(out))}\n"
                "  or give another place: --out FOLDER"
            )
    runs = [run for run, _ in chosen]
    try:
        words = [frozen_words(resolved, run, device) for run, resolved in chosen]
        launches = [_new_launch(asked, one, one, slurm) for one in words]
        job_ids = submit(runs, launches, out, name=f"pretrainkit-{out.name}")
    except InputError:
        for run in runs:
            LaunchFolder(run).discard()
        LaunchFolder(out).discard()
        raise
    _tell_sweep(job_ids, runs, out)


def resume_sweep(out: Path) -> None:
    """Submit again, as an array, the runs of a sweep that neither are finished nor wait or run."""
    left = [folder for folder in launched_runs(out) if not folder.is_finished and not living_job(folder)]
    if not left:
        print(f"each run of {out} is complete or in the queue\n  look at them: pretrainkit launch status {out}")
        return
    launches = [replace(folder.last(), words=folder.last().words_again, job_ids=()) for folder in left]
    first = replace(launches[0], words=(), words_again=(), code={})
    if first.kind != "slurm" or any(replace(one, words=(), words_again=(), code={}) != first for one in launches):
        raise InputError(
            f"{out} is no sweep: what it holds was not launched together\n"
            "  resume each run: pretrainkit launch resume RUN"
        )
    runs = [folder.run for folder in left]
    _tell_sweep(submit(runs, launches, out, name=f"pretrainkit-{out.name}"), runs, out)


def _tell_sweep(job_ids: Sequence[str], runs: Sequence[Path], out: Path) -> None:
    for job_id, run in zip(job_ids, runs, strict=True):
        print(f"job {job_id} trains in {run}")
    print(f"  pretrainkit launch status {out}   or logs, cancel, resume; the same of each run")
