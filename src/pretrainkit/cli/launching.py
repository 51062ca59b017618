"""What `train` and `resume` do with `--launch`."""

from pathlib import Path

import typer


def start(words: list[str], nproc: int, run_folder: Path) -> None:
    """Start `pretrainkit WORDS` in `nproc` processes on this machine and exit with their exit code."""
    from pretrainkit.launch.local import launch_local

    raise typer.Exit(launch_local(words, nproc, run_folder))
