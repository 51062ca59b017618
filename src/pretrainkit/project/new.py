"""Create a project from raw data, and run it: `pretrainkit new`."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import IO, Any

from pretrainkit.config.loader import nested
from pretrainkit.errors import DataError, InputError, RunError
from pretrainkit.files.manifest import made_by, read_object, write_text
from pretrainkit.files.outputs import new_folder, require_writable
from pretrainkit.project.files import REPORT, RUN, all_stages, as_json, write_project
from pretrainkit.recipes.capabilities import StartsProjects
from pretrainkit.recipes.proposal import ProjectRequest
from pretrainkit.recipes.registry import able, find_recipe, recipes_able
from pretrainkit.running.configs import resolve_config
from pretrainkit.running.hours import require_hours
from pretrainkit.workers.processes import Progress, Quiet, available_cores, handled_signals

RECORD = "project.json"
DEFAULT_HOURS = 0.5


@dataclass(frozen=True)
class Project:
    """A project on disk."""

    folder: Path
    record: Mapping[str, Any]
    """Request and proposal, as in project.json: recipe, data, hours, preset, found, left_out, decisions, commands."""
    is_new: bool
    """False if the project existed before."""

    @property
    def script(self) -> Path:
        """Script with all commands."""
        return self.folder / RUN

    @property
    def report(self) -> Path:
        """Report that the script writes last."""
        return self.folder / REPORT


def new_project(
    recipe: str, data: Sequence[str | Path], out: str | Path, *, hours: float | None, progress: Progress | None = None
) -> Project:
    """Survey raw data, decide on everything and write the project. A project that the same arguments created is left
    as it is.

    Args:
        recipe: Name of the recipe.
        data: Files, folders and globs.
        out: Folder of the project: new, empty, or a project of the same data.
        hours: Time for training; None: that of the existing project, or half an hour.

    Raises:
        ConfigError: There is no such recipe.
        InputError: The recipe cannot start projects, or `out` contains anything else.
        DataError: The data cannot be used.
    """
    if hours is not None:
        require_hours(hours)
    starter = able(find_recipe(recipe), StartsProjects)
    paths, folder = _absolute(data), Path(os.path.abspath(out))
    # In a command, a relative path that begins with a dash is an option.
    shown_folder = folder if str(out).startswith("-") else Path(out)
    if (before := _existing(folder, recipe, paths, hours)) is not None:
        return Project(shown_folder, before, is_new=False)

    from pretrainkit.dist.devices import devices

    device = devices()[0]
    request = ProjectRequest(
        data=paths,
        hours=DEFAULT_HOURS if hours is None else hours,
        folder=folder,
        device=device.name,
        has_accelerator=device.is_accelerator,
        num_cores=available_cores(),
        progress=progress or Quiet(),
    )
    require_writable(folder)
    try:
        proposal = starter.propose(request)
    except DataError as error:
        raise _with_kinds(error, recipe) from error
    resolve_config({"extends": proposal.preset, **nested(proposal.settings)})
    stages = all_stages(proposal, request.hours)
    record = {
        "recipe": recipe,
        "data": list(paths),
        "folder": str(folder),
        "hours": request.hours,
        "device": request.device,
        "made_by": made_by(),
        "preset": proposal.preset,
        "found": dict(proposal.facts),
        "left_out": [{"what": item.kind, "count": item.count, "examples": item.examples} for item in proposal.left_out],
        "decisions": as_json(proposal.decisions),
        "commands": [["pretrainkit", *stage.command] for stage in stages],
    }
    with new_folder(folder) as aside:
        write_project(aside, recipe, proposal, stages, paths)
        write_text(aside / RECORD, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return Project(shown_folder, record, is_new=True)


def run_project(project: Project, stdout: IO[str] | None = None) -> None:
    """Run the script of a project, with its standard output in `stdout` (None: that of this process). Finished work is
    kept. Raises InputError or RunError if a command fails, and KeyboardInterrupt if it was interrupted."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    process = subprocess.Popen(["bash", str(project.script)], env={**os.environ, "PATH": path}, stdout=stdout)
    # Ctrl-C also reaches the script, whose training saves its state before it ends: wait for that.
    with handled_signals(["SIGINT"], signal.SIG_IGN):
        code = process.wait()
    if code == 130:
        raise KeyboardInterrupt
    if code:
        kind = InputError if code == InputError.exit_code else RunError
        raise kind(
            f"a command of {project.script} ended with exit code {code}; its message is above\n"
            f"  fix that, then continue with: bash {quote(str(project.script))}"
        )


def _absolute(data: Sequence[str | Path]) -> tuple[str, ...]:
    """Return absolute paths. Raises InputError if one does not exist, or is not a path of this machine."""
    absolute = []
    for given in map(str, data):
        if "://" in given:
            name = given.removeprefix("hf://datasets/")
            if name == given:
                raise InputError(f"{given} is not a file or folder of this machine\n  copy it, then give the copy")
            raise InputError(
                f"{given} is not a file or folder of this machine\n"
                f"  copy it first: pretrainkit corpus hub {quote(name)} --out FOLDER"
            )
        path = os.path.abspath(given)
        names = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        if not names:
            raise InputError(f"there is no file or folder {given}\n  check the spelling")
        if not any(
            os.path.isfile(name) or any(files for _, _, files in os.walk(name, followlinks=True)) for name in names
        ):
            raise InputError(f"{given} contains no file\n  give a folder with data")
        absolute += names
    if not absolute:
        raise InputError("there are no data to start from\n  name at least one file or folder")
    return tuple(dict.fromkeys(absolute))


def _existing(folder: Path, recipe: str, data: Sequence[str], hours: float | None) -> dict[str, Any] | None:
    """Return the record of the project in `folder`; None if the folder is empty. Raises InputError if it contains
    anything else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    path = folder / RECORD
    if not path.is_file():
        raise InputError(f"{folder} is not empty and contains no project\n  name a new folder: --out FOLDER")
    record = read_object(path)
    if before := record.get("folder"):  # the data may have been moved together with the project
        moved = [os.path.abspath(folder / os.path.relpath(path, before)) for path in record["data"]]
        record["data"] = moved if moved == list(data) else record["data"]
    wanted = {"recipe": recipe, "data": list(data), "hours": record.get("hours") if hours is None else hours}
    if changed := [name for name, value in wanted.items() if record.get(name) != value]:
        differences = "; ".join(
            f"{name} was {_shown(record.get(name))}, not {_shown(wanted[name])}" for name in changed
        )
        raise InputError(
            f"{folder} holds another project: {differences}\n"
            f"  continue that one: bash {quote(str(folder / RUN))}\n"
            "  or name a new folder: --out FOLDER"
        )
    return record


def _shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def _with_kinds(error: DataError, recipe: str) -> DataError:
    """Add what each recipe reads to a message about data that cannot be used."""
    readable = [f"  {name} reads {item.reads}" for name, item in recipes_able(StartsProjects).items()]
    return DataError("\n".join([str(error), *readable]))
