"""`pretrainkit demo`."""

from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from typer import Argument, Option

from pretrainkit.cli.options import print_json
from pretrainkit.demo.catalogue import DEFAULT, DEMOS, TAKERS
from pretrainkit.errors import InputError

app = typer.Typer(add_completion=False)
ABOUT = "Train, evaluate and export a tiny model from data on this machine, in minutes on a CPU."


@app.command(help="\n\n".join([ABOUT, *(f"{name}: {demo.about}" for name, demo in DEMOS.items())]))
def demo(
    words: Annotated[
        list[str] | None,
        Argument(
            metavar=f"[{'|'.join(DEMOS)}] FILE...", help="Name of the demo. Further names are more files for --text."
        ),
    ] = None,
    text: Annotated[
        list[Path] | None, Option(help=f"For {TAKERS['text']}: train on your text file instead. May be repeated.")
    ] = None,
    out: Annotated[
        Path | None,
        Option(help="Folder to write. An earlier demo in it is replaced. Default: runs/demo, or runs/demo-NAME."),
    ] = None,
    num_steps: Annotated[
        int | None,
        Option(
            min=200,
            help="Number of steps. Default: "
            + ", ".join(f"{demo.num_steps} ({name})" for name, demo in DEMOS.items())
            + ".",
        ),
    ] = None,
    seed: Annotated[
        int, Option(min=0, help="Seed of all trainings: initial weights, order, masks. The data stays the same.")
    ] = 0,
    font: Annotated[
        Path | None,
        Option(help=f"For {TAKERS['font']}: font file to draw with. Default: DejaVu Sans Mono of matplotlib."),
    ] = None,
    json: Annotated[bool, Option("--json", help="Print the main results as one JSON object at the end.")] = False,
) -> None:
    rest = list(words or [])
    name = rest.pop(0) if rest and rest[0] in DEMOS else DEFAULT
    if rest and not text:
        raise InputError(
            f"there is no demo {rest[0]}\n  give one of: {', '.join(DEMOS)}\n  or, for a text file: "
            f"pretrainkit demo --text {quote(rest[0])}"
        )
    given: dict[str, Any] = {"text": [*text, *map(Path, rest)]} if text else {}
    given |= {} if font is None else {"font": font}
    for option in given:
        if DEMOS[name].takes != option:
            raise InputError(f"--{option} is only for the demo {TAKERS[option]}, not for {name}\n  leave it out")
    if missing := [str(path) for path in given.get("text", ()) if not path.is_file()]:
        raise InputError(f"there is no file {', '.join(missing)}\n  check the paths")
    folder = out or Path("runs/demo" if name == DEFAULT else f"runs/demo-{name}")
    module = import_module(f"pretrainkit.demo.{name}")
    result = module.run_demo(folder, num_steps or DEMOS[name].num_steps, seed, **given)
    if json:
        print_json(result)
