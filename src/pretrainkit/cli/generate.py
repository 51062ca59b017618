"""`pretrainkit generate`."""

import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pretrainkit import api
from pretrainkit.cli.options import Averaged, Decoding
from pretrainkit.cli.settings_options import with_settings


@with_settings
def generate(
    path: Annotated[Path, Argument(help="A run folder, a checkpoint in it, or an export.")],
    text: Annotated[list[str] | None, Argument(help="Prompts; default: lines of standard input.")] = None,
    *,
    top: Annotated[
        int | None, Option(min=1, help="BERT, CLIP: answers per masked word, or images per prompt. Default: 5.")
    ] = None,
    images: Annotated[
        Path | None, Option(metavar="FOLDER", help="CLIP: folder of images to search with the prompts.")
    ] = None,
    num: Annotated[
        int | None,
        Option(
            min=1, help="T5, 4M: Answers per prompt: of T5 the best of --beams, or draws; of 4M variations. Default: 1."
        ),
    ] = None,
    decoding: Decoding,
    given: Annotated[
        list[str] | None,
        Option("--from", metavar="NAME[=TEXT|=FILE]", help="4M: an input, such as rgb=photo.png; may be repeated."),
    ] = None,
    to: Annotated[str | None, Option(metavar="NAME,…", help="4M: modalities to generate, one after another.")] = None,
    from_data: Annotated[
        int | None,
        Option(min=1, help="4M: number of held-out samples of the run's data; --from names their input modalities."),
    ] = None,
    plan: Annotated[
        Path | None, Option(help="4M: YAML file with the targets and their settings, ours or one of the original.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME.FIELD=VALUE", help="4M: setting of a target, such as depth.num_steps=1."),
    ] = None,
    then: Annotated[
        list[Path] | None,
        Option(metavar="RUN", help="4M: another model for the targets that the models before it lack."),
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        Option(metavar="NAME=RUN", help="4M: image tokenizer that decodes generated tokens to pictures."),
    ] = None,
    out: Annotated[
        Path | None, Option(help="4M: new folder for pictures, JSON and a contact sheet. Default: generated.")
    ] = None,
    device: Annotated[str | None, Option(help="4M: cpu, cuda, ...; default: cpu.")] = None,
    averaged: Averaged = False,
    json: Annotated[bool, Option("--json", help="One JSON object per prompt.")] = False,
) -> None:
    """Let a trained model answer. BERT fills in what is masked: write <mask> in place of a word. CLIP finds the images
    of a folder that a text describes. T5 answers inputs of its tasks, fills in <extra_id_0>, or continues a text. 4M
    makes any modality from any others: prompts are captions, --from gives files and texts, --to names what to make."""
    is_chain = any(one is not None for one in (given, to, from_data, plan))
    prompts = text or ([] if is_chain else [line.rstrip("\n") for line in sys.stdin])
    names = None if to is None else [name for name in to.split(",") if name]
    found: dict[str, Any] = {"top": top, "images": images, "num": num, **decoding.given()}
    found |= {"given": given, "to": names, "from_data": from_data, "plan": plan, "settings": settings}
    found |= {"then": then, "image_tokenizers": tokenizer, "device": device}
    found["out"] = out or (Path("generated") if is_chain else None)
    options = {name: value for name, value in found.items() if value is not None}
    for answer in api.generate(path, prompts, averaged=averaged, **options):
        print(dumps(answer, ensure_ascii=False) if json else answer["text"])
