"""`pretrainkit report RUN...`: one self-contained HTML page of a run, or of several runs compared."""

import os
import sys
from pathlib import Path
from shlex import quote
from typing import Annotated

from typer import Argument, Option

from pretrainkit.cli.options import Json, print_path
from pretrainkit.errors import InputError


def report(
    runs: Annotated[
        list[Path], Argument(metavar="RUN...", help="Run folders, or folders with runs in them, such as runs.")
    ],
    out: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="File to write. Default: RUN/report.html; for several runs, comparison.html in their common folder.",
        ),
    ] = None,
    curve: Annotated[
        Path | None, Option(metavar="FILE", help="Also draw the main loss curve of a single run to this SVG file.")
    ] = None,
    serve: Annotated[
        bool, Option("--serve", help="Serve a page that follows the runs, only on this machine, until Ctrl-C.")
    ] = False,
    port: Annotated[int, Option(min=0, max=65535, help="Port of --serve; 0: a free one.")] = 0,
    refresh: Annotated[int, Option(min=1, help="Seconds between updates of the page of --serve.")] = 5,
    as_json: Json = False,
) -> None:
    """Write the report of a run as one HTML page: curves, samples, config with origins, data and environment.

    Several runs are compared on one page: results, curves in common charts, different settings, and samples.
    """
    from pretrainkit.report.comparison import write_comparison
    from pretrainkit.report.page import write_report

    if serve:
        _serve(runs, port, refresh, [f"--out {out}"] * (out is not None) + [f"--curve {curve}"] * (curve is not None))
        return
    folders = _run_folders(runs)
    if len(folders) == 1:
        page = write_report(folders[0], out)
    else:
        if curve is not None:
            raise InputError(
                f"--curve draws one run, and {len(folders)} are given\n  name one: pretrainkit report "
                f"{quote(str(folders[0]))} --curve {curve}"
            )
        common = Path(os.path.commonpath([path.parent for path in folders]))
        page = write_comparison(folders, out or common / "comparison.html")
    drawn = None
    if curve is not None:
        from pretrainkit.report.picture import write_curve

        drawn = write_curve(folders[0], curve)
    print_path(page, as_json, curve=None if drawn is None else str(drawn))
    if drawn is not None and not as_json:
        print(drawn)


def _serve(runs: list[Path], port: int, refresh: int, unused: list[str]) -> None:
    from pretrainkit.report.serve import live_page, open_server

    if unused:
        raise InputError(f"--serve writes no file, but {' and '.join(unused)} was given\n  leave out one of them")
    for folder in runs:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder\n  give a run folder, or a folder with runs in it")

    server, address = open_server(lambda: live_page(_run_folders(runs, notes=False), refresh), port)
    print(f"{address}\n  live until Ctrl-C; only this machine can open it", flush=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")


def _run_folders(folders: list[Path], *, notes: bool = True) -> list[Path]:
    """Return the runs in each folder, or the folder itself if it is a run or has no runs. Of several runs in a folder,
    leave out those that have not logged a step (just started, or failed before), with a note."""
    from pretrainkit.report.run_table import find_runs

    has_runs = {path: not (path / "metrics.jsonl").exists() and any(path.rglob("config.yaml")) for path in folders}
    runs = [run for folder in folders for run in (find_runs(folder) if has_runs[folder] else [folder])]
    empty = [run for run in runs if run not in folders and not _has_logged(run)]
    if not empty or len(empty) == len(runs):
        return runs
    if notes:
        print(f"note: left out, because no step is logged yet: {', '.join(map(str, empty))}", file=sys.stderr)
    return [run for run in runs if run not in empty]


def _has_logged(run: Path) -> bool:
    metrics = run / "metrics.jsonl"
    return metrics.is_file() and metrics.stat().st_size > 0
