"""`pretrainkit demo`."""

from importlib import import_module
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from pretrainkit.demo.catalogue import DEFAULT, DEMOS, TAKERS
from pretrainkit.errors import InputError

app = typer.Typer(add_completion=False)
ABOUT = "From data on this machine to a trained, evaluated, exported tiny model, in minutes on a CPU."


@app.command(help="\n\n".join([ABOUT, *(f"{name}: {demo.about}" for name, demo in DEMOS.items())]))
def demo(
    words: Annotated[
        list[str] | None,
        Argument(metavar=f"[{'|'.join(DEMOS)}] FILE...", help="Name of the demo, then more files for --text."),
    ] = None,
    text: Annotated[
        list[Path] | None, Option(help=f"{TAKERS['text']}: your own text files instead; repeat the option for more.")
    ] = None,
    out: Annotated[
        Path | None,
        Option(help="Folder to write, default runs/demo, or runs/demo-NAME; an earlier demo in it is replaced."),
    ] = None,
    num_steps: Annotated[
        int | None,
        Option(
            min=200,
            help="Optimizer updates, default "
            + ", ".join(f"{demo.num_steps} ({name})" for name, demo in DEMOS.items())
            + ".",
        ),
    ] = None,
    font: Annotated[
        Path | None,
        Option(help=f"{TAKERS['font']}: font file to draw with, default DejaVu Sans Mono of the package matplotlib."),
    ] = None,
    json: Annotated[bool, Option("--json", help="End with one JSON object of the headline numbers.")] = False,
) -> None:
    rest = list(words or [])
    name = rest.pop(0) if rest and rest[0] in DEMOS else DEFAULT
    if rest and not text:
        raise InputError(
            f"what is {rest[0]}?\n  demos: {', '.join(DEMOS)}\n  text files are given as: "
            f"pretrainkit demo --text {rest[0]}"
        )
    given: dict[str, Any] = {"text": [*text, *map(Path, rest)]} if text else {}
    given |= {} if font is None else {"font": font}
    for option in given:
        if DEMOS[name].takes != option:
            raise InputError(f"--{option} is for the demo of {TAKERS[option]}, not of {name}\n  leave it out")
    if missing := [str(path) for path in given.get("text", ()) if not path.is_file()]:
        raise InputError(f"there is no file {', '.join(missing)}")
    folder = out or Path("runs/demo" if name == DEFAULT else f"runs/demo-{name}")
    module = import_module(f"pretrainkit.demo.{name}")
    result = module.run_demo(folder, num_steps or DEMOS[name].num_steps, **given)
    if json:
        print(dumps(result))
