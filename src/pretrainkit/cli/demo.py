"""`pretrainkit demo`."""

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)

RECIPES = ("bert", "clip")


@app.command()
def demo(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[bert|clip] FILE...", help="Which demo; then more files for --text."),
    ] = None,
    text: Annotated[
        list[Path] | None, typer.Option(help="bert: your own text files instead; repeat the option for more.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write, default runs/demo or runs/demo-clip; an earlier demo in it is replaced."),
    ] = None,
    num_steps: Annotated[
        int | None, typer.Option(min=300, help="Optimizer updates, default 900 (bert) or 420 (clip).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="End with one JSON object of the headline numbers.")] = False,
) -> None:
    """From data on this machine to a trained, evaluated, exported tiny model, in minutes on a CPU.

    bert, the default: from English prose. clip: from generated images and captions.
    """
    import json as json_module

    from pretrainkit.errors import InputError

    rest = list(words or [])
    which = rest.pop(0) if rest and rest[0] in RECIPES else "bert"
    if rest and not text:
        raise InputError(
            f"what is {rest[0]}?\n  demos: {', '.join(RECIPES)}\n  text files are given as: "
            f"pretrainkit demo --text {rest[0]}"
        )
    result: dict[str, Any]
    if which == "clip":
        from pretrainkit.demo import clip

        if text:
            raise InputError("--text is for the demo of bert; clip makes its own pairs\n  leave it out")
        result = clip.run_demo(out or Path("runs/demo-clip"), num_steps or clip.NUM_STEPS)
    else:
        from pretrainkit.demo import bert

        given = [*(text or []), *map(Path, rest)]
        if missing := [str(path) for path in given if not path.is_file()]:
            raise InputError(f"there is no file {', '.join(missing)}")
        result = bert.run_demo(out or Path("runs/demo"), given, num_steps or bert.NUM_STEPS)
    if json:
        print(json_module.dumps(result))
