"""`pretrainkit launch`: manage runs that were started with `--launch`, and machines of a cloud."""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from pretrainkit.cli.launching import launch_again, repeated, resume_sweep, show_dry_run
from pretrainkit.cli.options import Json, print_json
from pretrainkit.config.loader import config_from_overrides
from pretrainkit.errors import InputError
from pretrainkit.launch import cloud as sky
from pretrainkit.launch import slurm
from pretrainkit.launch.folder import LaunchFolder, launched_runs

app = typer.Typer(add_completion=False, no_args_is_help=True)

Run = Annotated[Path, Argument(help="A run folder, or the folder of a sweep.")]


@contextmanager
def _answer(as_json: bool, **answer: Any) -> Iterator[dict[str, Any]]:
    """Yield a dict for results. If `as_json`, it is printed at the end, and everything else is printed to stderr, also
    by other programs."""
    if not as_json:
        yield answer
        return
    sys.stdout.flush()
    stdout, code = os.dup(1), 0
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield answer
    except typer.Exit as end:  # ranks of this machine have ended
        code = end.exit_code
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    print_json(answer)
    if code:
        raise typer.Exit(code)


def _jobs(folder: LaunchFolder) -> dict[str, Any]:
    launch = folder.last()
    return {"run": str(folder.run), "kind": launch.kind, "jobs": list(launch.job_ids)}


@app.command()
def status(
    run: Annotated[
        Path, Argument(metavar="RUN|NAME", help="A run folder, the folder of a sweep, or the name of cloud machines.")
    ],
    as_json: Json = False,
) -> None:
    """Show the state and the progress of a launched run, of the runs of a sweep, or of cloud machines."""
    if not run.exists() and run.name == str(run):
        if as_json:
            print_json({"name": str(run), "state": sky.cluster_state(f"machines:{run}")})
        else:
            sky.status(str(run), dry_run=False)
        return
    for folder in launched_runs(run):
        _show_status(folder, as_json)


def _show_status(folder: LaunchFolder, as_json: bool) -> None:
    run, launch, checkpoint, attempts = folder.run, folder.last(), folder.newest_checkpoint, folder.attempts()
    # Elastic machines have a launcher each, and the newest one may have left while others train.
    names = ("machines",) if launch.elastic else launch.job_ids
    states = {name: _state(folder, launch.kind, name) for name in names}
    row = {
        "run": str(run),
        "kind": launch.kind,
        "ranks": launch.world_size,
        "elastic": launch.elastic,
        "command": ["pretrainkit", *launch.words],
        "jobs": states,
        "checkpoint": checkpoint,
        "attempts": attempts,
        "code": launch.code.get("git"),
    }
    if as_json:
        print_json(row)
        return
    ranks = "1 rank" if launch.world_size == 1 else f"{launch.world_size} ranks"
    if launch.elastic:
        ranks += f" on each of {launch.elastic} machines"
    print(f"{run}: {launch.kind}, {ranks}, commit {launch.code.get('git') or 'unknown'}")
    print(f"  {shlex.join(['pretrainkit', *launch.words])}")
    for name, state in states.items():
        label = name if launch.elastic else f"{'process' if launch.kind == 'local' else 'job'} {name}"
        print(f"  {label}: {state}")
    print(f"  newest checkpoint: {checkpoint or 'none yet'}")
    for row in attempts:
        last = row["checkpoint"] or "no checkpoint"
        print(f"  ended with {row['code']} ({row['cause']}) after {last}: {row['then']}")


def _state(folder: LaunchFolder, kind: str, job_id: str) -> str:
    if kind == "local":
        return "RUNNING" if folder.is_held else "ended"
    state = slurm.state(job_id) if kind == "slurm" else sky.cluster_state(job_id)
    return "CANCELLED" if kind == "slurm" and state == "UNKNOWN" and folder.is_cancelled else state


@app.command()
def logs(
    run: Run,
    rank: Annotated[int | None, Option(min=0, help="Show only the log of this rank.")] = None,
    lines: Annotated[int, Option(min=1, help="Number of lines of each log.")] = 20,
    as_json: Json = False,
) -> None:
    """Show the last lines of each rank's log, and the paths of the logs."""
    paths = [path for folder in launched_runs(run) for path in folder.rank_logs(rank)]
    shown = {str(path): path.read_text(errors="replace").splitlines()[-lines:] for path in paths}
    if as_json and paths:
        print_json(shown)
        return
    for path, last in shown.items():
        print(f"== {path}")
        print("\n".join(last))
    if not paths:
        raise InputError(
            f"{run} has no such log yet\n  check that it runs: pretrainkit launch status {shlex.quote(str(run))}"
        )
    if (run / "launch/jobs").is_dir():
        print(f"== output of the scheduler: {run / 'launch/jobs'}")


@app.command()
def cancel(
    run: Run,
    now: Annotated[bool, Option("--now", help="Do not wait for the ranks to save.")] = False,
    as_json: Json = False,
) -> None:
    """End a launched run or a sweep. Its ranks save a checkpoint first. Only `resume --launch same` starts it again."""
    kinds = {"local": lambda folder: folder.is_held, "slurm": slurm.living_job, "cloud": lambda folder: True}
    living = [folder for folder in launched_runs(run) if kinds[folder.last().kind](folder)]
    if not living:
        raise InputError(f"{run} is not running\n  resume it: pretrainkit resume {shlex.quote(str(run))} --launch same")
    with _answer(as_json, cancelled=[_jobs(folder) for folder in living]):
        for folder in living:
            launch = folder.last()
            folder.cancel()
            if launch.kind == "local":
                if not launch.elastic:  # the launchers of elastic machines look for the file `cancelled`
                    os.kill(int(launch.job_ids[0]), signal.SIGTERM)
            elif launch.kind == "slurm":
                for job_id in launch.job_ids:
                    slurm.cancel(job_id, now=now)
            else:
                sky.cancel_jobs(launch.job_ids[0])
            print(f"cancelled {launch.kind} {', '.join(launch.job_ids)}")


@app.command()
def resume(run: Run, as_json: Json = False) -> None:
    """Resume a launched run with the same command, ranks, scheduler and settings.

    This is an alias of `pretrainkit resume RUN --launch same`. For a sweep, resume its runs that are neither finished
    nor in the queue nor running. To resume a run with another launcher or number of ranks, use `pretrainkit resume`.
    """
    folders = launched_runs(run)
    before = [len(folder.launches()) for folder in folders]
    with _answer(as_json) as answer:
        try:
            _resume(run, folders)
        finally:
            answer["resumed"] = [
                _jobs(folder) for folder, num in zip(folders, before, strict=True) if len(folder.launches()) > num
            ]


def _resume(run: Path, folders: list[LaunchFolder]) -> None:
    if folders[0].run != run:
        resume_sweep(run)
        return
    (folder,) = folders
    if folder.is_finished:
        more = f"pretrainkit resume {shlex.quote(str(run))} num_steps=N, with --launch as before"
        print(f"{run} is complete: {folder.newest_checkpoint}; to train longer: {more}")
        return
    launch_again(run, repeated(folder))


CloudSettings = Annotated[
    list[str] | None,
    Option(
        "--cloud",
        metavar="NAME=VALUE",
        help="Setting of the cloud machines, such as accelerators=H100:8. May be repeated.",
    ),
]
Name = Annotated[str, Argument(help="Name of the cloud machines, such as my-pod.")]
DryRun = Annotated[bool, Option("--dry-run", help="Print the task file and the commands, and run nothing.")]
Nodes = Annotated[
    int | None, Option(min=1, help="Number of machines. Default: as in the task file.", show_default=False)
]
_FOLDER = Path(".pretrainkit") / "cloud"
"""Folder for the task files of cloud machines."""


def _task(name: str, cloud: list[str] | None, nodes: int | None, command: list[str]) -> tuple[Any, Any]:
    sky.require_name(name)
    config = config_from_overrides(sky.CloudConfig, cloud or [], "--cloud")
    return config, sky.task_of(config, name=name, command=command, num_nodes=nodes)


def _run_all(as_json: bool, dry_run: bool, name: str, run: Callable[[], sky.Commands], file: str | None = None) -> None:
    """Run or show the commands of an action on the machines `name`, with a task file."""
    with _answer(as_json, name=name, dry_run=dry_run) as answer:
        answer["commands"] = run()
        if dry_run:
            show_dry_run(answer["commands"], None if file is None else _FOLDER / file)


@app.command()
def create(
    name: Name, cloud: CloudSettings = None, nodes: Nodes = None, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Start cloud machines with SkyPilot (`sky launch`)."""
    config, task = _task(name, cloud, nodes, ["doctor"])
    action = partial(sky.create, name, task, config, _FOLDER, dry_run=dry_run)
    _run_all(as_json, dry_run, name, action, f"{name}-create.yaml")


@app.command()
def provision(
    name: Name, cloud: CloudSettings = None, nodes: Nodes = None, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Set up cloud machines, and add them as git remotes of this checkout."""
    config, task = _task(name, cloud, nodes, ["doctor"])
    action = partial(sky.provision, name, task, config, _FOLDER, dry_run=dry_run)
    _run_all(as_json, dry_run, name, action, f"{name}-provision.yaml")


@app.command()
def run(
    name: Name,
    command: Annotated[
        list[str], Argument(metavar="-- WORDS", help="A command of pretrainkit, such as corpus shards ...")
    ],
    cloud: CloudSettings = None,
    nodes: Nodes = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Run a command of pretrainkit on all cloud machines at once."""
    _, task = _task(name, cloud, nodes, command)
    action = partial(sky.run_on, name, task, _FOLDER, dry_run=dry_run)
    _run_all(as_json, dry_run, name, action, f"{name}-run.yaml")


@app.command()
def ssh_config(name: Name, nodes: Nodes = 1, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Update the addresses of cloud machines in the ssh config, and print their ssh commands."""
    sky.require_name(name)
    with _answer(as_json, name=name, dry_run=dry_run) as answer:
        answer["commands"] = sky.status(name, dry_run=dry_run)
        if dry_run:
            show_dry_run(answer["commands"])
        answer["hosts"] = sky.host_aliases(name, nodes or 1)
        for alias in answer["hosts"]:
            print(f"ssh {alias}")


@app.command()
def delete(name: Name, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Delete cloud machines with all files on them. Files in buckets are kept."""
    sky.require_name(name)
    _run_all(as_json, dry_run, name, partial(sky.delete, name, dry_run=dry_run))
