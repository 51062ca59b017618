"""`pretrainkit render`: render text to folders of rows of pixels."""

import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from pretrainkit.cli.options import Json, MaxBad, TextKey, Workers, print_json
from pretrainkit.cli.stages import amount, shown_stages
from pretrainkit.errors import InputError

Layout = Literal["even", "published", "arrow", "webdataset"]
"""Layouts of rendered rows in files."""


class ColumnName(StrEnum):
    """Columns that --column may add."""

    text = "text"
    document = "document"
    renderer = "renderer"


def render(
    context: typer.Context,
    inputs: Annotated[
        list[str] | None,
        Argument(
            metavar="CORPUS...", help="A folder that `pretrainkit corpus shards` wrote; or files, globs or addresses."
        ),
    ] = None,
    *,
    out: Annotated[Path | None, Option(help="Output folder, for OUT/train and OUT/valid.")] = None,
    renderer: Annotated[
        str | None,
        Option(help="A renderer folder, a font file for PIXEL's published settings, or a model on the hub."),
    ] = None,
    packing: Annotated[
        Literal["exact", "original"],
        Option(
            help="exact: fill rows with as many whole words as fit. original: whole lines, by the rule of the "
            "original PIXEL."
        ),
    ] = "exact",
    max_patches: Annotated[
        int | None, Option(min=2, help="Number of patches per row. Default: as in the renderer's settings.")
    ] = None,
    text_only: Annotated[
        bool,
        Option(
            "--text-only", help="Split the text into rows without drawing them. Training draws them when it reads them."
        ),
    ] = False,
    column: Annotated[list[ColumnName] | None, Option(help="Add this column to the files. May be repeated.")] = None,
    heldout: Annotated[float, Option(help="Share of documents for OUT/valid, by a hash of their text.")] = 0.0,
    format: Annotated[
        Literal["auto", "jsonl", "text", "book", "wiki", "parquet", "articles"],
        Option(
            help="Format of every CORPUS. auto: by its name. articles: lines of text, with three blank lines between "
            "articles."
        ),
    ] = "auto",
    split: Annotated[str, Option(help="With --layout: name of the split in file names.")] = "train",
    shard_characters: Annotated[int, Option(min=1, help="Number of characters of text per file.")] = 8_000_000,
    layout: Annotated[
        Layout,
        Option(
            help="For rendered rows as CORPUS: layout to write. even: parquet files with small row groups. published: "
            "parquet files for the hub. arrow: as `datasets` saves to disk. webdataset: tars."
        ),
    ] = "even",
    push: Annotated[
        str | None,
        Option(
            metavar="USER/NAME",
            help="Upload the files to this data set on the hub as they are rendered, instead of --out.",
        ),
    ] = None,
    public: Annotated[bool, Option("--public", help="With --push: make a new data set public.")] = False,
    license: Annotated[
        str | None, Option(help="With --push: licence for the data card, as named on the hub, such as cc-by-4.0.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only report the number of rows and how full they are.")] = False,
    workers: Workers = None,
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    json_output: Json = False,
) -> None:
    """Render documents to parquet files (OUT/train, and OUT/valid where CORPUS has held-out documents).

    If CORPUS is a folder of rendered rows, they are written to OUT in another layout. After an interruption, the same
    command continues. The files do not depend on --workers.
    """
    from pretrainkit.api import open_renderer
    from pretrainkit.rendering.documents import find_documents
    from pretrainkit.rendering.prerender import RenderSettings, prerender
    from pretrainkit.rendering.prerender import dry_run as measure
    from pretrainkit.rendering.relayout import row_files

    if push is None and (unused := "--public" if public else "--license" if license else None):
        raise InputError(
            f"{unused} has an effect only with --push\n  leave out {unused}, or give --push USER/NAME instead of --out"
        )
    if push is not None and out is not None:
        raise InputError(
            "--push uploads rows without keeping them, but --out names a folder for them\n"
            "  leave out one of them; to upload a complete folder, use pretrainkit data push FOLDER USER/NAME"
        )
    if inputs and len(inputs) == 1 and row_files(inputs[0]):
        _reject_drawing_options(context)
        _write_layout(inputs[0], _require_out(out), layout, split, workers or 1)
        return
    if layout != "even":
        raise InputError(
            f"--layout {layout} needs rendered rows as CORPUS\n  render first, then give that OUT/train as CORPUS"
        )
    if renderer is None:
        raise InputError("no renderer is given\n  name a renderer folder or a font file with --renderer")
    settings = RenderSettings(
        packing=packing,
        with_pixels=not text_only,
        extras=tuple(dict.fromkeys(name.value for name in column or ())),
        held_out=heldout,
        shard_characters=shard_characters,
        max_bad=max_bad,
    )
    if not inputs:
        raise InputError("nothing to read\n  name CORPUS: a folder, files, or hf://datasets/NAME")
    if split != "train":
        raise InputError(f"--split {split} has an effect only if CORPUS holds rendered rows\n  leave out --split")
    documents = find_documents(inputs, format, text_key)
    drawn_by = open_renderer(renderer, max_patches)
    if dry_run:
        with tempfile.TemporaryDirectory() as work, shown_stages() as progress:
            counts = measure(documents, drawn_by, settings, Path(work), workers=workers, progress=progress)
        if json_output:
            print_json(vars(counts))
            return
        typer.echo(
            f"{amount(counts.num_documents, 'document')} would be {amount(counts.num_rows, 'row')} with "
            f"{counts.num_patches:,} text patches, {counts.fill_rate:.1%} full"
        )
        return
    if push is not None:
        from pretrainkit.files.hub import Hub
        from pretrainkit.rendering.hub import push_rows

        hub = Hub(push, private=not public)
        with shown_stages() as progress:
            manifests = push_rows(
                *(documents, drawn_by, hub, settings), workers=workers, progress=progress, license=license
            )
        _report(Path(push), manifests, json_output)
        return
    out = _require_out(out)
    with shown_stages() as progress:
        manifests = prerender(documents, drawn_by, out, settings, workers=workers, progress=progress)
    _report(out, manifests, json_output)


def _report(out: Path, manifests: dict[str, dict[str, Any]], json_output: bool) -> None:
    if json_output:
        print_json(manifests)
        return
    for name, manifest in manifests.items():
        typer.echo(
            f"{out / name}: {amount(manifest['num_rows'], 'row')} with {manifest['num_patches']:,} text patches, "
            f"{manifest['fill_rate']:.1%} full, in {amount(len(manifest['shards']), 'file')}, "
            f"{manifest['num_bytes'] / 1e6:,.1f} MB, fingerprint {manifest['fingerprint'][:12]}"
        )
    for reason, entry in next(iter(manifests.values()))["skipped"].items():
        typer.echo(f"skipped: {entry['count']:,} {reason.replace('_', ' ')}", err=True)


_OF_ROWS = frozenset({"inputs", "out", "layout", "split", "workers"})


def _reject_drawing_options(context: typer.Context) -> None:
    """Raise InputError for options of rendering, which have no effect on rows that are rendered already."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in _OF_ROWS and source is not None and source.name == "COMMANDLINE":
            raise InputError(
                f"{parameter.opts[0]} is for documents, but CORPUS holds rendered rows\n"
                f"  leave out {parameter.opts[0]}, or render the documents with it"
            )


def _require_out(out: Path | None) -> Path:
    if out is None:
        raise InputError(
            "no output folder is given\n  add --out FOLDER, or --dry-run to only report the number of rows"
        )
    return out


def _write_layout(folder: str, out: Path, layout: Layout, split: str, workers: int) -> None:
    from pretrainkit.rendering.relayout import publish, regroup, to_arrow, to_webdataset

    writers: dict[Layout, Callable[..., list[Path]]]
    writers = {"published": publish, "arrow": to_arrow, "webdataset": to_webdataset}
    with shown_stages() as progress:
        if layout == "even":
            manifest = regroup(folder, out, workers=workers, progress=progress)
            typer.echo(f"{out}: {amount(manifest['num_rows'], 'row')} in {amount(len(manifest['shards']), 'file')}")
        else:
            files = writers[layout](folder, out, split=split, progress=progress)
            typer.echo(f"{out}: {amount(len(files), 'file')}, the last is {files[-1].name}")
