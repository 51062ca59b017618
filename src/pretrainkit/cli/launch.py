"""`pretrainkit launch`: runs that were started with `--launch`, and machines of a cloud."""

import json
import os
import shlex
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from pretrainkit.cli.launching import launch_again, resume_sweep, show_dry_run
from pretrainkit.config.loader import config_from_overrides
from pretrainkit.errors import InputError
from pretrainkit.launch import cloud as sky
from pretrainkit.launch import slurm
from pretrainkit.launch.folder import LaunchFolder, launched_runs

app = typer.Typer(add_completion=False, no_args_is_help=True)

Run = Annotated[Path, Argument(help="The run folder, or that of a sweep.")]


@app.command()
def status(
    run: Annotated[
        Path, Argument(metavar="RUN|NAME", help="The run folder, that of a sweep, or the name of machines.")
    ],
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the state and the progress of a launched run."""
    if not run.exists() and run.name == str(run):
        sky.status(str(run), dry_run=False)
        return
    for folder in launched_runs(run):
        _show_status(folder, as_json)


def _show_status(folder: LaunchFolder, as_json: bool) -> None:
    run, launch, checkpoint, attempts = folder.run, folder.last(), folder.newest_checkpoint, folder.attempts()
    states = {job_id: _state(folder, launch.kind, job_id) for job_id in launch.job_ids}
    found = {
        "run": str(run),
        "kind": launch.kind,
        "ranks": launch.world_size,
        "command": ["pretrainkit", *launch.words],
        "jobs": states,
        "checkpoint": checkpoint,
        "attempts": attempts,
        "code": launch.code.get("git"),
    }
    if as_json:
        print(json.dumps(found))
        return
    print(f"{run}: {launch.kind}, {launch.world_size} ranks, code {launch.code.get('git') or 'of no checkout'}")
    print(f"  {shlex.join(['pretrainkit', *launch.words])}")
    for job_id, state in states.items():
        print(f"  {'process' if launch.kind == 'local' else 'job'} {job_id}: {state}")
    print(f"  newest checkpoint: {checkpoint or 'none yet'}")
    for row in attempts:
        print(f"  ended with {row['code']} ({row['cause']}) after {row['checkpoint']}: {row['then']}")


def _state(folder: LaunchFolder, kind: str, job_id: str) -> str:
    if kind == "local":
        return "RUNNING" if folder.is_held else "ended"
    found = slurm.state(job_id) if kind == "slurm" else sky.cluster_state(job_id)
    return "CANCELLED" if kind == "slurm" and found == "UNKNOWN" and folder.is_cancelled else found


@app.command()
def logs(
    run: Run,
    rank: Annotated[int | None, Option(min=0, help="Show only the log of this rank.")] = None,
    lines: Annotated[int, Option(min=1, help="Last lines of each.")] = 20,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the last lines of each rank's log, and the paths of the logs."""
    found = [path for folder in launched_runs(run) for path in folder.rank_logs(rank)]
    shown = {str(path): path.read_text(errors="replace").splitlines()[-lines:] for path in found}
    if as_json and found:
        print(json.dumps(shown))
        return
    for path, last in shown.items():
        print(f"== {path}")
        print("\n".join(last))
    if not found:
        raise InputError(f"{run} has no such log yet\n  does it run? pretrainkit launch status {shlex.quote(str(run))}")
    if (run / "launch/jobs").is_dir():
        print(f"== what the scheduler wrote: {run / 'launch/jobs'}")


@app.command()
def cancel(run: Run, now: Annotated[bool, Option("--now", help="Do not wait for the ranks to save.")] = False) -> None:
    """End a launched run or a sweep. Its ranks save first, and only `launch resume` starts it again."""
    kinds = {"local": lambda folder: folder.is_held, "slurm": slurm.living_job, "cloud": lambda folder: True}
    living = [folder for folder in launched_runs(run) if kinds[folder.last().kind](folder)]
    if not living:
        raise InputError(f"{run} does not run\n  resume it: pretrainkit launch resume {shlex.quote(str(run))}")
    for folder in living:
        launch = folder.last()
        folder.cancel()
        if launch.kind == "local":
            os.kill(int(launch.job_ids[0]), signal.SIGTERM)
        elif launch.kind == "slurm":
            for job_id in launch.job_ids:
                slurm.cancel(job_id, now=now)
        else:
            sky.cancel_jobs(launch.job_ids[0])
        print(f"asked {launch.kind} {', '.join(launch.job_ids)} to end")


@app.command()
def resume(run: Run) -> None:
    """Resume a launched run with the same command, ranks, scheduler and settings; `resume --launch` chooses others.

    For a sweep, resume the runs that are not finished and neither wait nor run."""
    folders = launched_runs(run)
    if folders[0].run != run:
        resume_sweep(run)
        return
    (folder,) = folders
    if folder.is_finished:
        more = f"pretrainkit resume {shlex.quote(str(run))} num_steps=N, and --launch as before"
        print(f"{run} is complete: {folder.newest_checkpoint}; to train longer: {more}")
        return
    launch = folder.last()
    launch_again(run, replace(launch, words=launch.words_again, job_ids=()))


CloudSettings = Annotated[
    list[str] | None,
    Option("--cloud", metavar="NAME=VALUE", help="Setting of a cloud's machines, such as accelerators=H100:8."),
]
Name = Annotated[str, Argument(help="Name of the machines, such as my-pod.")]
DryRun = Annotated[bool, Option("--dry-run", help="Show task file and commands; do nothing.")]
Nodes = Annotated[int | None, Option(min=1, help="Machines; left out: as in the task file.", show_default=False)]
_FOLDER = Path(".pretrainkit") / "cloud"
"""Folder of the task files of machines."""


def _task(name: str, cloud: list[str] | None, nodes: int | None, command: list[str]) -> tuple[Any, Any]:
    sky.require_name(name)
    config = config_from_overrides(sky.CloudConfig, cloud or [], "--cloud")
    return config, sky.task_of(config, name=name, command=command, num_nodes=nodes)


def _show(commands: list[list[str]], dry_run: bool, file: str | None = None) -> None:
    if dry_run:
        show_dry_run(commands, None if file is None else _FOLDER / file)


@app.command()
def create(name: Name, cloud: CloudSettings = None, nodes: Nodes = None, dry_run: DryRun = False) -> None:
    """Get machines of a cloud: sky launch."""
    config, task = _task(name, cloud, nodes, ["doctor"])
    _show(sky.create(name, task, config, _FOLDER, dry_run=dry_run), dry_run, f"{name}-create.yaml")


@app.command()
def provision(name: Name, cloud: CloudSettings = None, nodes: Nodes = None, dry_run: DryRun = False) -> None:
    """Set machines up, and make them git remotes of this checkout."""
    config, task = _task(name, cloud, nodes, ["doctor"])
    _show(sky.provision(name, task, config, _FOLDER, dry_run=dry_run), dry_run, f"{name}-provision.yaml")


@app.command()
def run(
    name: Name,
    command: Annotated[
        list[str], Argument(metavar="-- WORDS", help="Command of pretrainkit, such as corpus shards ...")
    ],
    cloud: CloudSettings = None,
    nodes: Nodes = None,
    dry_run: DryRun = False,
) -> None:
    """Run a command of pretrainkit on all machines at once."""
    _, task = _task(name, cloud, nodes, command)
    _show(sky.run_on(name, task, _FOLDER, dry_run=dry_run), dry_run, f"{name}-run.yaml")


@app.command()
def ssh_config(name: Name, nodes: Nodes = 1, dry_run: DryRun = False) -> None:
    """Bring the machines' addresses in the ssh config up to date, and say their names."""
    sky.require_name(name)
    _show(sky.status(name, dry_run=dry_run), dry_run)
    for alias in sky.host_aliases(name, nodes or 1):
        print(f"ssh {alias}")


@app.command()
def delete(name: Name, dry_run: DryRun = False) -> None:
    """Delete machines and all that is on them; what is in buckets stays."""
    sky.require_name(name)
    _show(sky.delete(name, dry_run=dry_run), dry_run)
