"""`pretrainkit generate`."""

import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import Averaged, Decoding, Device, print_json
from pretrainkit.cli.settings_options import with_settings


@with_settings
def generate(
    path: Annotated[Path, Argument(help="A run folder, a checkpoint in it, or an export.")],
    text: Annotated[list[str] | None, Argument(help="Prompts. Default: the lines of standard input.")] = None,
    *,
    top: Annotated[
        int | None,
        Option(min=1, help="BERT, CLIP: number of answers per masked word, or of images per prompt. Default: 5."),
    ] = None,
    images: Annotated[
        Path | None, Option(metavar="FOLDER", help="CLIP: folder of images to search with the prompts.")
    ] = None,
    num: Annotated[
        int | None,
        Option(
            min=1,
            help="T5, 4M: number of answers per prompt. T5: the best of --beams, or samples. 4M: variations. Default: "
            "1.",
        ),
    ] = None,
    decoding: Decoding,
    inputs: Annotated[
        list[str] | None,
        Option("--from", metavar="NAME[=TEXT|=FILE]", help="4M: an input, such as rgb=photo.png. May be repeated."),
    ] = None,
    to: Annotated[
        str | None, Option(metavar="NAME,…", help="4M: modalities to generate, one after another, separated by commas.")
    ] = None,
    from_data: Annotated[
        int | None,
        Option(
            min=1, help="4M: use this many held-out examples of the run's data. --from names their input modalities."
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        Option(help="4M: YAML file with the targets and their settings, in our format or that of the original 4M."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME.FIELD=VALUE",
            help="4M: setting of a target, such as depth.num_steps=1. May be repeated.",
        ),
    ] = None,
    then: Annotated[
        list[Path] | None,
        Option(
            metavar="RUN",
            help="4M: another model, for the targets that the models before it cannot generate. May be repeated.",
        ),
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=RUN", help="4M: image tokenizer that decodes generated tokens to pictures. May be repeated."
        ),
    ] = None,
    out: Annotated[
        Path | None, Option(help="4M: new folder for pictures, JSON and a contact sheet. Default: generated.")
    ] = None,
    device: Device = None,
    averaged: Averaged = False,
    json: Annotated[bool, Option("--json", help="Print one JSON object per prompt.")] = False,
) -> None:
    """Answer prompts with a trained model.

    BERT fills in masked words: write <mask> in place of a word. CLIP finds the images of a folder that a text
    describes. T5 answers inputs of its tasks, fills in <extra_id_0>, or continues a text. 4M generates any modality
    from any others: prompts are captions, --from gives other inputs, and --to names the modalities to generate.

    For all rows of a file, or all examples of a task, use `pretrainkit infer`.
    """
    is_chain = any(option is not None for option in (inputs, to, from_data, plan))
    prompts = text or ([] if is_chain else [line.rstrip("\n") for line in sys.stdin])
    names = None if to is None else [name for name in to.split(",") if name]
    given_options: dict[str, Any] = {"top": top, "images": images, "num": num, **decoding.given()}
    given_options |= {"inputs": inputs, "to": names, "from_data": from_data, "plan": plan, "settings": settings}
    given_options |= {"then": then, "image_tokenizers": tokenizer}
    given_options["out"] = out or (Path("generated") if is_chain else None)
    options = {name: value for name, value in given_options.items() if value is not None}
    for answer in api.generate(path, prompts, averaged=averaged, device=device, **options):
        if json:
            print_json(answer)
        else:
            print(answer["text"])
