"""`pretrainkit data`: check data, pack image-text pairs into tars, extract captions, upload finished data."""

from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from pretrainkit.cli.options import Branch, DryPush, Json, Private, print_json, print_path, print_upload
from pretrainkit.cli.stages import amount, shown_stages
from pretrainkit.errors import DataError, InputError, MissingSplitError, import_optional

if TYPE_CHECKING:
    from pretrainkit.recipes.capabilities import ReadsPairs
    from pretrainkit.recipes.recipe import Split

app = typer.Typer(add_completion=False, no_args_is_help=True)

_MOST_PROBLEMS = 50

SplitName = Literal["train", "valid", "both"]
PairFormat = Literal["auto", "csv", "webdataset", "img2dataset", "huggingface"]
_SETS = (
    "Sets of image-text pairs: a folder with train_anno.csv or valid_anno.csv, a folder or pattern of tars "
    "(webdataset), an output folder of img2dataset, a folder or hub name of a Hugging Face data set."
)
Sets = Annotated[list[str], Argument(metavar="SET...", help=_SETS)]
SplitOption = Annotated[SplitName, Option(help="Split of each set. both: every split that it has.")]
FormatOption = Annotated[PairFormat, Option(help="Format of the sets. auto: detect it from the files.")]
ImageKey = Annotated[str | None, Option(help="Column or file extension of the images.")]
CaptionKey = Annotated[str | None, Option(help="Column or file extension of the captions.")]


@app.command()
def check(
    sets: Annotated[
        list[str],
        Argument(
            metavar="SET...|PRESET|FILE.yaml [PATH=VALUE...]",
            help=f"{_SETS} Or a preset or YAML file, to check its training data before a training.",
        ),
    ],
    *,
    split: SplitOption = "both",
    format: FormatOption = "auto",
    image_key: ImageKey = None,
    caption_key: CaptionKey = None,
    num: Annotated[int, Option(min=1, help="For a config: number of examples to show of each component.")] = 2,
    deep: Annotated[
        bool, Option("--deep", help="For a config: read every record. Sets of pairs are always read completely.")
    ] = False,
    page: Annotated[
        Path | None,
        Option(help="For a config: also write this HTML page, with charts and with examples as the model reads them."),
    ] = None,
    size: Annotated[int | None, Option(min=1, help="Count images that are smaller than this, in pixels.")] = None,
    batch_size: Annotated[
        int | None, Option(min=1, help="Report the number of whole batches of this size, and the remainder.")
    ] = None,
    tokenizer: Annotated[
        str | None, Option(help="Tokenizer folder or hub name, to report caption lengths in tokens.")
    ] = None,
    max_length: Annotated[int | None, Option(min=1, help="Count captions that have more tokens than this.")] = None,
    workers: Annotated[int | None, Option(min=1, help="Number of threads. Default: one per core.")] = None,
    json_output: Json = False,
) -> None:
    """Check every image and caption of sets of pairs, or the training data of a config.

    For sets of pairs: report what is missing, broken, empty, too large or duplicated. The exit code is 2 if a row
    cannot be used, or if held-out images are in the training data.

    For a config: report lengths, shares and epochs, how full rows are, languages, held-out examples that are also in
    the training data, and the first examples as the model reads them. With --deep, first read every record, and report
    those that cannot be used. The exit code is 2 if there is a problem.
    """
    if _is_config(sets[0]):
        _check_config(sets[0], sets[1:], num, json_output, deep, page)
        return
    if page is not None:
        raise InputError(f"--page {page}: pages are only written for a config\n  leave out --page")
    opened = [_open(path, split, format, image_key, caption_key) for path in sets]
    reader = _reader()
    results = []
    with shown_stages() as progress:
        for parts in opened:
            for part, pairs in parts.items():
                report = reader.scan_pairs(
                    pairs,
                    size=size,
                    batch_size=batch_size,
                    tokenizer=tokenizer,
                    max_length=max_length,
                    workers=workers,
                    progress=progress,
                )
                results.append({"split": part, **report})
    held_out = None
    try:
        reader.require_held_out(*([parts[name] for parts in opened if name in parts] for name in ("train", "valid")))
    except DataError as error:
        held_out = str(error)
    if json_output:
        print_json({"sets": results, "held_out": held_out})
    else:
        for result in results:
            _show(result)
        if held_out is not None:
            typer.echo(f"held out: {held_out}")
    if held_out is not None or any(result["bad"] for result in results):
        raise typer.Exit(2)


def _reader() -> "ReadsPairs[Any]":
    from pretrainkit.recipes.capabilities import ReadsPairs
    from pretrainkit.recipes.registry import first_able

    return first_able(ReadsPairs)


def _is_config(name: str) -> bool:
    """True if `name` is a YAML file or a preset. A folder is a set."""
    if name.endswith((".yaml", ".yml")):
        return True
    from pretrainkit.recipes.registry import entries

    return name.count("/") == 1 and name.split("/")[0] in entries() and not Path(name).exists()


def _check_config(
    source: str, settings: list[str], num: int, json_output: bool, is_deep: bool, page: Path | None
) -> None:
    from dataclasses import asdict

    from pretrainkit import api
    from pretrainkit.report.data_page import write_data_page

    config = api.load_config(source, settings)
    with shown_stages() as progress:
        report = api.check_data(config, num=num, deep=is_deep, progress=progress)
    if page is not None:
        write_data_page(asdict(report), page, title=source, recipe=config.recipe)
    if json_output:
        print_json(asdict(report))
    else:
        for problem in report.problems[:_MOST_PROBLEMS]:
            typer.echo(f"problem: {problem}")
    if (num := len(report.problems)) and not json_output:
        hint = f"; only the first {_MOST_PROBLEMS} are shown, --json prints all"
        typer.echo(f"problems: {num:,}{hint if num > _MOST_PROBLEMS else ''}")
    if num:
        raise typer.Exit(2)
    if json_output:
        return
    for name, value in report.figures.items():
        lines = (f"{value:,}" if isinstance(value, int) else str(value)).split("\n")
        typer.echo(f"{name:<21} {lines[0]}")
        for line in lines[1:]:
            typer.echo(f"{'':<22}{line}")
    for example in report.examples:
        typer.echo("")
        for name, value in example.items():
            text = value if isinstance(value, str) else "; ".join(item.get("text") or "picture" for item in value)
            typer.echo(f"{name}: {text}" if "\n" not in text else f"{name}\n{text}")
    typer.echo("")
    for note in report.notes:
        typer.echo(f"note: {note}")
    if page is not None:
        typer.echo(f"page: {page}")


@app.command()
def pack(
    set_path: Annotated[str, Argument(metavar="SET", help="Set of image-text pairs, as for `data check`.")],
    *,
    out: Annotated[Path, Option(help="New folder to write.")],
    split: SplitOption = "both",
    format: FormatOption = "auto",
    image_key: ImageKey = None,
    caption_key: CaptionKey = None,
    shard_size: Annotated[str, Option(help="Size of a tar, such as 256MB.")] = "256MB",
    max_bad: Annotated[
        int, Option(min=0, help="Skip at most this many bad images, empty captions and truncated archives.")
    ] = 0,
    heldout: Annotated[
        float, Option(help="Share of images for OUT/valid, by a hash of their files, of a set without held-out images.")
    ] = 0.0,
    json_output: Json = False,
) -> None:
    """Write a set of pairs as tars (webdataset) with a manifest: OUT/train and OUT/valid. They appear when complete."""
    from pretrainkit.workers.processes import parse_bytes

    parts = _open(set_path, split, format, image_key, caption_key)
    with shown_stages() as progress:
        manifests = _reader().pack_pairs(
            parts, out, shard_bytes=parse_bytes(shard_size), max_bad=max_bad, heldout=heldout, progress=progress
        )
    if json_output:
        print_json(manifests)
        return
    for part, manifest in manifests.items():
        typer.echo(
            f"{out / part}: {manifest['num_pairs']:,} pairs of {manifest['num_images']:,} images, "
            f"{len(manifest['shards'])} tars, {manifest['num_bytes'] / 1e6:,.1f} MB, "
            f"fingerprint {manifest['fingerprint'][:12]}"
        )
        for reason, count in manifest["left_out"].items():
            typer.echo(f"left out: {count:,} {reason}", err=True)


@app.command()
def captions(
    sets: Sets,
    *,
    out: Annotated[Path, Option(help="File of JSON lines to write.")],
    split: SplitOption = "train",
    format: FormatOption = "auto",
    caption_key: CaptionKey = None,
    json_output: Json = False,
) -> None:
    """Write captions as documents, to train a tokenizer with `corpus count-words` and `tokenizer train`."""
    parts = [pairs for path in sets for pairs in _open(path, split, format, None, caption_key).values()]
    number = _reader().write_captions(parts, out)
    if json_output:
        print_path(out, True, captions=number)
        return
    typer.echo(f"{out}: {number:,} captions\n  next: pretrainkit corpus count-words {quote(str(out))} --out words.tsv")


@app.command()
def push(
    folder: Annotated[
        Path, Argument(help="A complete folder that corpus shards, tokenizer encode, render or data pack wrote.")
    ],
    name: Annotated[str, Argument(metavar="USER/NAME", help="Name of the data set on the Hugging Face hub.")],
    *,
    license: Annotated[
        str | None, Option(help="Licence for the data card, as named on the hub, such as cc-by-4.0.")
    ] = None,
    private: Private = True,
    revision: Branch = None,
    dry_run: DryPush = False,
    json_output: Json = False,
) -> None:
    """Upload finished data with a data card to the Hugging Face hub, in several commits.

    After an interruption, the same command continues. A README.md in FOLDER replaces the generated card.
    """
    import_optional("huggingface_hub", "hub", "data push")
    from pretrainkit.files.hub import Hub
    from pretrainkit.running.publish import push_data

    hub = Hub(name, private=private, revision=revision)
    with shown_stages() as progress:
        sent = push_data(folder, hub, license=license, dry_run=dry_run, progress=progress)
    print_upload(hub.url, sent, dry_run=dry_run, as_json=json_output)


def _open(
    path: str, split: SplitName, format: PairFormat, image_key: str | None, caption_key: str | None
) -> "dict[Split, Any]":
    """Return the requested split; for `both`, those that exist."""
    open_pairs = partial(_reader().open_pairs, path, format=format, image_key=image_key, caption_key=caption_key)
    if split != "both":
        return {split: open_pairs(split=split)}
    opened: dict[Split, Any] = {}
    failures = []
    parts: tuple[Split, ...] = ("train", "valid")
    for part in parts:
        try:
            pairs = open_pairs(split=part)
        except MissingSplitError as error:
            failures.append(error)
            continue
        if all(
            pairs.fingerprint != other.fingerprint for other in opened.values()
        ):  # equal pairs: the set has no splits, and is listed once
            opened[part] = pairs
    if not opened:
        raise failures[0]
    return opened


def _show(result: dict[str, Any]) -> None:
    typer.echo(
        f"{result['set']} {result['split']}: {result['pairs']:,} pairs of {result['images']:,} images, "
        f"{result['different_captions']:,} different captions, fingerprint {result['fingerprint'][:12]}"
    )
    for name in ("captions_per_image", "width", "height", "caption_tokens"):
        if result.get(name):
            line = "  ".join(f"{key} {value:,.4g}" for key, value in result[name].items())
            typer.echo(f"  {name.replace('_', ' '):<20}{line}")
    for name in ("batches", "remainder", "smaller_images", "cut_captions", "duplicate_pairs"):
        if name in result:
            typer.echo(f"  {name.replace('_', ' '):<20}{result[name]:,}")
    for reason, count in result["left_out"].items():
        typer.echo(f"  left out: {count:,} {reason}")
    for reason, entry in result["bad"].items():
        images = entry.get("images")
        captions = "" if images is None else f" ({amount(entry['count'], 'caption')})"
        typer.echo(f"  bad: {amount(images or entry['count'], reason)}{captions}")
        for example in entry["examples"]:
            typer.echo(f"    {example}")
