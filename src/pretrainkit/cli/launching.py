"""What `train` and `resume` do with `--launch`."""

from pathlib import Path

import typer

from pretrainkit.errors import ConfigError


def check_launch(launch: str, nproc: int) -> None:
    """Raises ConfigError where --launch and --nproc do not go together."""
    if launch not in ("none", "local"):
        raise ConfigError(f"--launch {launch!r} is not known\n  ways to launch: none, local")
    if launch == "none" and nproc != 1:
        raise ConfigError(f"--nproc {nproc} is only read by --launch local\n  add --launch local, or leave out --nproc")


def start(words: list[str], nproc: int, run_folder: Path) -> None:
    """Start `pretrainkit WORDS` in `nproc` processes on this machine and exit with their exit code."""
    from pretrainkit.launch.local import launch_local

    raise typer.Exit(launch_local(words, nproc, run_folder))
