"""`pretrainkit demo`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    text: Annotated[
        list[Path] | None, typer.Option(help="Your own text files instead; repeat the option for more.")
    ] = None,
    files: Annotated[list[Path] | None, typer.Argument(help="More files for --text.", metavar="FILE")] = None,
    out: Annotated[Path, typer.Option(help="Folder to write; an earlier demo in it is replaced.")] = Path("runs/demo"),
    num_steps: Annotated[int, typer.Option(min=300, help="Optimizer updates.")] = 1200,
    json: Annotated[bool, typer.Option("--json", help="End with one JSON object of the headline numbers.")] = False,
) -> None:
    """From English prose on this machine to a trained, evaluated, exported tiny BERT, in minutes on a CPU."""
    import json as json_module

    from pretrainkit.demo.bert import run_demo
    from pretrainkit.errors import InputError

    if files and not text:
        raise InputError(f"what is {files[0]}?\n  text files are given as: pretrainkit demo --text {files[0]}")
    given = [*(text or []), *(files or [])]
    if missing := [str(path) for path in given if not path.is_file()]:
        raise InputError(f"there is no file {', '.join(missing)}")
    result = run_demo(out, given, num_steps)
    if json:
        print(json_module.dumps(result))
