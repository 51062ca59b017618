"""The main loss curve of a run as a picture, for example for a README."""

from pathlib import Path

from pretrainkit.errors import DataError, import_optional
from pretrainkit.files.manifest import atomic_file
from pretrainkit.report.curves import loss_charts
from pretrainkit.report.run_folder import read_run

_COLORS = ("#2563c9", "#d9560b", "#0d8a6f")
"""Colours that differ clearly on a white and on a black page."""
_GREY = "#808894"


def write_curve(run_folder: Path, out: Path) -> Path:
    """Draw the main loss curve of a run as an SVG file without background; return the file. Raises DataError if the
    run does not exist or has no loss, or `out` cannot be written, and MissingPackageError without matplotlib."""
    charts = loss_charts([read_run(run_folder)])
    if not charts:
        raise DataError(
            f"{run_folder / 'metrics.jsonl'} has no loss to draw\n  a curve needs 'loss' or a term ending in '_loss'"
        )
    matplotlib = import_optional("matplotlib", "demo", "report --curve")
    figures = import_optional("matplotlib.figure", "demo", "report --curve", package="matplotlib")
    chart = charts[0]
    # Store letters as text instead of outlines, and write the same bytes for the same run.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pretrainkit", "font.family": "sans-serif"}):
        axes = (figure := figures.Figure(figsize=(8.6, 3.8), layout="constrained")).subplots()
        for line in chart.series:
            width, alpha = (0.8, 0.35) if line.kind == "faint" else (1.8, 1)
            points = {"marker": "o", "markersize": 3.5} if line.kind == "points" else {}
            axes.plot(
                line.xs, line.ys, color=_COLORS[line.color], linewidth=width, alpha=alpha, label=line.name, **points
            )
        for level in chart.levels:
            axes.axhline(level.y, color=_GREY, linewidth=1, linestyle="--")
            axes.text(
                1, level.y, level.text, transform=axes.get_yaxis_transform(), ha="right", va="bottom", color=_GREY
            )
        for mark in chart.marks:
            axes.axvline(mark.x, color=_GREY, linewidth=1, linestyle=":")
            axes.text(mark.x, 1, f" {mark.text}", transform=axes.get_xaxis_transform(), va="top", color=_GREY)
        axes.set(title=chart.title, xlabel="step", yscale="log" if chart.log_y else "linear")
        axes.title.set_color(_GREY)
        axes.xaxis.label.set_color(_GREY)
        axes.tick_params(color=_GREY, labelcolor=_GREY)
        axes.grid(axis="y", color=_GREY, alpha=0.25)
        axes.spines[:].set_visible(False)
        axes.legend(frameon=False, labelcolor=_GREY)
        with atomic_file(out) as file:
            figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return out
