"""`pretrainkit report RUN`: one self-contained HTML page of a run."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option


def report(
    run: Annotated[Path, Argument(metavar="RUN", help="Run folder, such as runs/demo.")],
    out: Annotated[Path | None, Option(metavar="FILE", help="File to write; default: RUN/report.html.")] = None,
    curve: Annotated[Path | None, Option(metavar="FILE", help="Also draw the main loss curve: an SVG file.")] = None,
) -> None:
    """Write the report of a run: curves, samples, config with origins, data, environment."""
    from pretrainkit.report.curve import write_curve
    from pretrainkit.report.page import write_report

    print(write_report(run, out))
    if curve is not None:
        print(write_curve(run, curve))
