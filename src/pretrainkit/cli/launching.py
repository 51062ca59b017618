"""Start runs by `train`, `finetune` and `resume` with `--launch`."""

import json
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import typer

from pretrainkit import api
from pretrainkit.cli.options import LaunchOptions
from pretrainkit.config.loader import config_from_overrides
from pretrainkit.config.paths import absolute_paths, moved_paths, paths_here
from pretrainkit.config.yaml import dump_yaml, parse_yaml
from pretrainkit.errors import ConfigError, InputError
from pretrainkit.files.manifest import write_text
from pretrainkit.launch.cloud import CloudConfig, launch_run
from pretrainkit.launch.folder import Launch, LaunchFolder, launched_runs
from pretrainkit.launch.local import launch_local
from pretrainkit.launch.slurm import living_job, require_idle, submit
from pretrainkit.training.folder import RunFolder, environment
from pretrainkit.workers.slurm_config import SlurmConfig


def _new_launch(options: LaunchOptions, words: Sequence[str], again: Sequence[str], settings: dict[str, Any]) -> Launch:
    return Launch(
        kind=options.launch,  # type: ignore[arg-type]
        words=tuple(words),
        words_again=tuple(again),
        num_nodes=options.nodes,
        processes_per_node=options.processes_per_node,
        gpus_per_node=options.gpus_per_node,
        max_restarts=options.max_restarts,
        hang_minutes=options.hang_minutes,
        elastic=options.elastic or "",
        meet=options.meet or "",
        settings=settings,
        code=environment(),
    )


def start(
    options: LaunchOptions, words: list[str], again: list[str], run: Path, world_sizes: Sequence[int] = ()
) -> None:
    """Start `pretrainkit WORDS` with the launcher in `options`. After an interruption, it runs with the words `again`.
    `world_sizes`: the possible numbers of ranks if they are elastic.

    Wait for local ranks, and exit with their exit code. Jobs are left to their scheduler.
    """
    settings: dict[str, Any] = {}
    if options.launch == "slurm":
        settings = config_from_overrides(SlurmConfig, options.slurm, "--slurm").model_dump(mode="json")
    elif options.launch == "cloud":
        settings = config_from_overrides(CloudConfig, options.cloud, "--cloud").model_dump(mode="json")
    launch = replace(_new_launch(options, words, again, settings), world_sizes=tuple(world_sizes))
    if not options.dry_run:
        launch_again(run, launch)
        return

    commands = launch_run(run, launch, dry_run=True)  # only a cloud has a dry run
    show_dry_run(commands, LaunchFolder(run).path / "task.yaml")


def show_dry_run(commands: Sequence[Sequence[str]], task: Path | None = None) -> None:
    """Print the task file and the commands that would be run for a cloud."""
    if task is not None:
        print(task.read_text(encoding="utf-8"))
    for command in commands:
        print("$ " + shlex.join(command))


def start_frozen(
    options: LaunchOptions, resolved: Any, run: Path, device: str | None, *, resume: bool = False, as_json: bool = False
) -> None:
    """Launch a run with a copy of its config, so that later changes of files and presets do not touch it.

    If the launcher refuses the config, a folder that was created here is removed. Jobs always resume if there is a
    checkpoint, and print JSON lines.
    """
    is_new = not run.exists()
    # The config in the folder must not change while a run trains or waits with it.
    LaunchFolder(run).require_free(shared=bool(options.elastic))
    if options.launch == "slurm":
        require_idle(LaunchFolder(run))
    if options.launch == "cloud" and (local_paths := list(paths_here(resolved.config))):
        raise ConfigError(
            f"{name}: {path} is on this machine, and cloud machines cannot read it\n"
            "  copy it to the bucket and give its path there: /bucket/...; or, if they share a file system with "
            "this machine, give an absolute path"
            for name, path in local_paths
        )
    try:
        is_local = options.launch == "local"
        again = frozen_words(resolved, run, device, as_json=as_json or not is_local)
        first = [word for word in again if word != "--resume"] if is_local and not resume else again
        start(options, first, again, run, _usable_sizes(resolved, options))
    except (InputError, typer.Exit) as error:
        if is_new and (isinstance(error, InputError) or error.exit_code == 2):
            LaunchFolder(run).discard()
        raise


def _usable_sizes(resolved: Any, options: LaunchOptions) -> list[int]:
    """Return the numbers of elastic ranks that batches can be split over. Raises ConfigError if they cannot be
    split over the fewest."""
    fewest, *more = options.elastic_sizes
    api.check_config(resolved.config, fewest, resolved.origins)
    usable = [fewest]
    for size in more:
        with suppress(ConfigError):
            api.check_config(resolved.config, size, resolved.origins)
            usable.append(size)
    return usable


def launch_again(run: Path, launch: Launch) -> None:
    """Start a new launch, or repeat an earlier one. For local ranks, exit with their exit code."""
    if launch.kind == "slurm":
        (job_id,) = submit([run], [launch], run, name=f"pretrainkit-{run.name}")
        print(f"job {job_id} trains in {run}")
        print(f"  pretrainkit launch status {shlex.quote(str(run))}   or logs, cancel, resume")
        return
    if launch.kind == "cloud":
        launch_run(run, launch)
        print(f"{run.name} trains in {launch.settings['bucket']}/runs/{run.name}")
        print(f"  pretrainkit launch status {shlex.quote(str(run))}   or cancel, resume")
        return

    raise typer.Exit(launch_local(launch, run))


def repeated(folder: LaunchFolder) -> Launch:
    """Return the newest launch of a run, to continue it. If the folder was moved or copied since then, the command is
    that of the present folder, and data that moved with it are found."""
    launch, now = folder.last(), folder.run.absolute()
    words = launch.words_again
    before = _run_in(words)
    config = folder.path / "config.yaml"
    if before not in (None, str(now)) and launch.kind != "cloud":  # the paths of a cloud are those of its machines
        words = tuple(
            f"{now}{word.removeprefix(before)}" if word == before or word.startswith(f"{before}/") else word
            for word in words
        )
        if config.is_file():
            tree = parse_yaml(config.read_text(encoding="utf-8"), str(config))
            write_text(config, dump_yaml(moved_paths(tree, before, now)))
    return replace(launch, words=words, words_again=words, job_ids=())


def _run_in(words: Sequence[str]) -> str | None:
    """Return the run folder in a command that trains or resumes."""
    if "--out" in words:
        return words[words.index("--out") + 1]
    return words[1] if words[:1] == ("resume",) else None


def frozen_words(resolved: Any, run: Path, device: str | None, *, as_json: bool = True) -> list[str]:
    """Return the command-line arguments that train or resume exactly this config, even if presets or files change.

    The config is written to `RUN/launch/config.yaml`, and the origin of each value to `origins.json` beside it.
    """
    folder = LaunchFolder(run.absolute())
    folder.prepare()
    config, origins = folder.path / "config.yaml", folder.path / "origins.json"
    text = dump_yaml(absolute_paths(resolved.config).model_dump(mode="json"))
    with folder.alone():
        for path, content in ((config, text), (origins, json.dumps(resolved.origins, indent=2) + "\n")):
            write_text(path, content)  # ranks of other machines may be reading it
    words = ["train", str(config), "--origins", str(origins), "--out", str(run.absolute()), "--resume"]
    return [*words, *(["--json"] if as_json else []), *(["--device", device] if device else [])]


_COMMA = re.compile(r",(?![^\[{]*[\]}])")
"""A comma that is not within [...] or {...}."""


def sweep_settings(sweep: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return name and overrides of every run of `--sweep path=a,b --sweep other=c,d`: all combinations.

    A value may be a list: `path=[a,b],[c]`. In names, characters that are special in file names become `_`.

    Raises:
        ConfigError: An option has no path or no values, or two runs would have the same name.
    """
    axes: dict[str, list[tuple[str, str]]] = {}
    for word in sweep:
        path, equals, values = word.partition("=")
        choices = [value for value in _COMMA.split(values) if value]
        if not path or not equals or not choices:
            raise ConfigError(
                f"--sweep {word!r} needs a setting and its values\n"
                "  write for example --sweep optimizer.peak_lr=1e-4,3e-4"
            )
        if path in axes:
            both = ",".join([*(value for _, value in axes[path]), *choices])
            raise ConfigError(f"--sweep {path} is given twice\n  give all values at once: --sweep {path}={both}")
        axes[path] = [(path, value) for value in choices]
    runs = [
        (
            ",".join(re.sub(r"[^\w.+=,-]+", "_", f"{path.rpartition('.')[2]}={value}") for path, value in chosen),
            [f"{path}={value}" for path, value in chosen],
        )
        for chosen in product(*axes.values())
    ]
    names = [name for name, _ in runs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"--sweep gives two runs the same name, {twice}\n  give each value once")
    return runs


def start_sweep(options: LaunchOptions, source: str, settings: list[str], out: Path, device: str | None) -> None:
    """Submit a run for each combination of values, as an array of jobs. Each run gets a folder in `out`."""
    slurm = config_from_overrides(SlurmConfig, options.slurm, "--slurm").model_dump(mode="json")
    chosen = [
        (out / name, api.resolve_config(source, [*settings, *more])) for name, more in sweep_settings(options.sweep)
    ]
    for run, resolved in chosen:
        api.check_config(resolved.config, options.world_size)
        resolved.config.parallel.require_ranks(options.world_size)
        if LaunchFolder(run).launches() or RunFolder(run).has_checkpoint:
            raise InputError(
                f"{run} already holds a run\n"
                f"  resume the sweep: pretrainkit resume {shlex.quote(str(out))} --launch same\n"
                "  or give another folder: --out FOLDER"
            )
    runs = [run for run, _ in chosen]
    try:
        words = [frozen_words(resolved, run, device) for run, resolved in chosen]
        launches = [_new_launch(options, arguments, arguments, slurm) for arguments in words]
        job_ids = submit(runs, launches, out, name=f"pretrainkit-{out.name}")
    except InputError:
        for run in runs:
            LaunchFolder(run).discard()
        LaunchFolder(out).discard()
        raise
    _print_sweep(job_ids, runs, out)


def resume_sweep(out: Path) -> None:
    """Submit again, as an array, the runs of a sweep that are neither finished nor in the queue nor running."""
    left = [folder for folder in launched_runs(out) if not folder.is_finished and not living_job(folder)]
    if not left:
        home = shlex.quote(str(out))
        print(f"every run of {out} is complete or in the queue\n  show them with: pretrainkit launch status {home}")
        return
    launches = [repeated(folder) for folder in left]
    first = replace(launches[0], words=(), words_again=(), code={})
    if first.kind != "slurm" or any(replace(launch, words=(), words_again=(), code={}) != first for launch in launches):
        raise InputError(
            f"{out} is not a sweep: its runs were not launched together\n"
            "  resume each run: pretrainkit resume RUN --launch same"
        )
    runs = [folder.run for folder in left]
    _print_sweep(submit(runs, launches, out, name=f"pretrainkit-{out.name}"), runs, out)


def _print_sweep(job_ids: Sequence[str], runs: Sequence[Path], out: Path) -> None:
    for job_id, run in zip(job_ids, runs, strict=True):
        print(f"job {job_id} trains in {run}")
    home = shlex.quote(str(out))
    print(f"  pretrainkit launch status {home}   or logs, cancel, resume; each also takes a single run")
