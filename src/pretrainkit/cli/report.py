"""`pretrainkit report RUN`: one self-contained HTML page of a run."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pretrainkit.cli.options import Json, print_path


def report(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder, such as runs/demo.")],
    out: Annotated[Path | None, Option(metavar="FILE", help="HTML file to write. Default: RUN/report.html.")] = None,
    curve: Annotated[
        Path | None, Option(metavar="FILE", help="Also draw the main loss curve to this SVG file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the report of a run as one HTML page: curves, samples, config with origins, data and environment."""
    from pretrainkit.report.curve import write_curve
    from pretrainkit.report.page import write_report

    page = write_report(run, out)
    drawn = None if curve is None else write_curve(run, curve)
    print_path(page, as_json, curve=None if drawn is None else str(drawn))
    if drawn is not None and not as_json:
        print(drawn)
