"""`pretrainkit new`."""

import os
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from pretrainkit.cli.options import print_json
from pretrainkit.cli.stages import VERBOSITY, shown_stages
from pretrainkit.errors import Interrupted

if TYPE_CHECKING:
    from pretrainkit.project.new import Project


def new(
    recipe: Annotated[str, Argument(help="Recipe, see `pretrainkit recipes`.")],
    data: Annotated[list[str], Argument(metavar="DATA...", help="Files and folders of raw data.")],
    *,
    out: Annotated[Path, Option(metavar="PROJECT", help="Folder of the project.")],
    hours: Annotated[float | None, Option(help="Hours to train on this machine.", show_default="0.5")] = None,
    go: Annotated[bool, Option("--go", help="Also run the project, to the report.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the proposal as JSON.")] = False,
) -> None:
    """Examine raw data, choose all settings of a training with a reason for each, and write a project.

    The settings are held-out share, shards, vocabulary, lengths, preset and batch. The project has config.yaml, run.sh
    with the commands, and README.md with the reasons. The same command with --go runs it. After an interruption, the
    same command continues.
    """
    from pretrainkit import api
    from pretrainkit.project.new import run_project

    with shown_stages() as progress:
        project = api.new_project(recipe, data, out, hours=hours, progress=progress)
    is_quiet = os.environ.get(VERBOSITY) == "quiet"
    if as_json:
        print_json({"out": str(out), **project.record})
    elif not is_quiet:
        print("\n".join(_summary(project)), flush=True)
    if not go:
        if not as_json:
            print(f"next: bash {quote(str(project.script))}" + ("" if is_quiet else ", or the same command with --go"))
        return
    try:
        run_project(project, sys.stderr if as_json else None)
    except KeyboardInterrupt as error:
        raise Interrupted("stopped\n  finished work is kept: the same command continues from here") from error
    print(project.report, file=sys.stderr if as_json else sys.stdout)


def _summary(project: "Project") -> list[str]:
    """Return lines with the properties of the data and the decisions. Their reasons are in README.md."""
    from pretrainkit.project.files import README, shown

    record: Any = project.record
    lines = [f"{project.folder}: {record['recipe']} from {', '.join(record['data'])}"]
    rows = [*record["found"].items()]
    rows += [
        ("left out", f"{item['what']}: {item['count']:,}, such as {item['examples'][0]}") for item in record["left_out"]
    ]
    rows += [
        (item["name"], item["reason"].partition(":")[0] if item["value"] is None else shown(item["value"]))
        for item in record["decisions"]
    ]
    width = max(len(name) for name, _ in rows) + 2
    lines += [f"  {name:<{width}}{value}" for name, value in rows]
    state = "written" if project.is_new else "unchanged"
    return [*lines, f"the reasons are in {project.folder / README}; {state}: config.yaml, run.sh"]
