"""`pretrainkit demo`."""

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)

RECIPES = ("bert", "clip", "t5", "pixel", "fourm")


@app.command()
def demo(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[bert|clip|t5|pixel|fourm] FILE...", help="Which demo; then more files for --text."),
    ] = None,
    text: Annotated[
        list[Path] | None, typer.Option(help="bert: your own text files instead; repeat the option for more.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write, default runs/demo, or runs/demo-RECIPE; an earlier demo in it is replaced."
        ),
    ] = None,
    num_steps: Annotated[
        int | None,
        typer.Option(
            min=200,
            help="Optimizer updates, default 900 (bert, pixel), 420 (clip), 220 of fine-tuning (t5), 700 (fourm).",
        ),
    ] = None,
    font: Annotated[
        Path | None,
        typer.Option(help="pixel: font file to draw with, default DejaVu Sans Mono of the package matplotlib."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="End with one JSON object of the headline numbers.")] = False,
) -> None:
    """From data on this machine to a trained, evaluated, exported tiny model, in minutes on a CPU.

    bert, the default: from English prose. clip: from generated images and captions. t5: from English prose, then
    fine-tuned to answer questions about it. pixel: from sentences that are drawn, then fine-tuned to name parts of
    speech. fourm: from generated scenes, each as photograph, depth, classes, caption and boxes.
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
    if font is not None and which != "pixel":
        raise InputError(f"--font is for the demo of pixel; {which} draws nothing\n  leave it out")
    result: dict[str, Any]
    if which == "clip":
        from pretrainkit.demo import clip

        _refuse_text(text, "clip makes its own pairs")
        result = clip.run_demo(out or Path("runs/demo-clip"), num_steps or clip.NUM_STEPS)
    elif which == "t5":
        from pretrainkit.demo import t5

        _refuse_text(text, "t5 asks about the text that is on every machine")
        result = t5.run_demo(out or Path("runs/demo-t5"), num_steps or t5.NUM_STEPS)
    elif which == "pixel":
        from pretrainkit.demo import pixel

        _refuse_text(text, "pixel draws sentences of its own")
        result = pixel.run_demo(out or Path("runs/demo-pixel"), font, num_steps or pixel.NUM_STEPS)
    elif which == "fourm":
        from pretrainkit.demo import fourm

        _refuse_text(text, "fourm makes its own scenes")
        result = fourm.run_demo(out or Path("runs/demo-fourm"), num_steps or fourm.NUM_STEPS)
    else:
        from pretrainkit.demo import bert

        given = [*(text or []), *map(Path, rest)]
        if missing := [str(path) for path in given if not path.is_file()]:
            raise InputError(f"there is no file {', '.join(missing)}")
        result = bert.run_demo(out or Path("runs/demo"), given, num_steps or bert.NUM_STEPS)
    if json:
        print(json_module.dumps(result))


def _refuse_text(text: list[Path] | None, why: str) -> None:
    from pretrainkit.errors import InputError

    if text:
        raise InputError(f"--text is for the demo of bert; {why}\n  leave it out")
