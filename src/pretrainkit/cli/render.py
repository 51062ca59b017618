"""`pretrainkit render`: text to folders of rendered rows."""

import json
import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from pretrainkit.cli.options import Json, MaxBad, TextKey, Workers
from pretrainkit.cli.stages import amount, shown_stages
from pretrainkit.errors import InputError

Layout = Literal["even", "published", "arrow", "webdataset"]
"""Ways to lay rows out in files."""


class ColumnName(StrEnum):
    """Columns that may be added."""

    text = "text"
    document = "document"
    renderer = "renderer"


def render(
    context: typer.Context,
    inputs: Annotated[
        list[str] | None,
        Argument(metavar="CORPUS...", help="Folder of `pretrainkit corpus shards`; or files, globs, addresses."),
    ] = None,
    *,
    out: Annotated[Path | None, Option(help="Output folder, which gets train and maybe valid.")] = None,
    renderer: Annotated[
        str | None,
        Option(help="Folder of a renderer, a font for the published settings, or the name of a model on the hub."),
    ] = None,
    packing: Annotated[
        Literal["exact", "original"],
        Option(help="exact: rows as full as whole words allow; original: whole lines, by the original's rule."),
    ] = "exact",
    max_patches: Annotated[int | None, Option(min=2, help="Patches of a row; left out: as the renderer says.")] = None,
    text_only: Annotated[
        bool, Option("--text-only", help="Cut the text without drawing it: training draws it on the way.")
    ] = False,
    column: Annotated[list[ColumnName] | None, Option(help="A further column; may be repeated.")] = None,
    heldout: Annotated[float, Option(help="Share of documents for OUT/valid, by a hash of their text.")] = 0.0,
    format: Annotated[
        Literal["auto", "jsonl", "text", "book", "wiki", "parquet", "articles"],
        Option(help="Read every INPUT as this; articles: lines, three blank ones between articles."),
    ] = "auto",
    split: Annotated[str, Option(help="With --layout: name of the split in the names of files.")] = "train",
    shard_characters: Annotated[int, Option(min=1, help="Text of one file.")] = 8_000_000,
    layout: Annotated[
        Layout,
        Option(
            help="Of rendered rows as CORPUS. even: small groups of rows; published: for the hub; arrow: as `datasets` "
            "saves to disk; webdataset: tars."
        ),
    ] = "even",
    push: Annotated[
        str | None,
        Option(
            metavar="USER/NAME",
            help="Instead of --out: upload files to this data set of the hub while others are rendered.",
        ),
    ] = None,
    public: Annotated[bool, Option("--public", help="With --push: everybody may see a new data set.")] = False,
    license: Annotated[
        str | None, Option(help="With --push: licence for the data card, as the hub names it, such as cc-by-4.0.")
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only say how many rows there would be and how full they are.")
    ] = False,
    workers: Workers = None,
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    json_output: Json = False,
) -> None:
    """Render documents to parquet files (OUT/train, and OUT/valid where CORPUS has held-out documents).

    After an interruption, the same command continues. The files do not depend on --workers. A folder of
    rendered rows as CORPUS is written to OUT in another layout.
    """
    from pretrainkit.api import open_renderer
    from pretrainkit.rendering.documents import find_documents
    from pretrainkit.rendering.prerender import RenderSettings, prerender
    from pretrainkit.rendering.prerender import dry_run as measure
    from pretrainkit.rendering.relayout import row_files

    if push is None and (unused := "--public" if public else "--license" if license else None):
        raise InputError(
            f"{unused} has an effect only with --push\n"
            f"  leave out {unused}, or name a data set by --push instead of --out"
        )
    if push is not None and out is not None:
        raise InputError(
            "--push keeps no rows here, and --out names a folder for them\n"
            "  leave one of them out; a finished folder is uploaded by pretrainkit data push FOLDER USER/NAME"
        )
    if inputs and len(inputs) == 1 and row_files(inputs[0]):
        _refuse_options_of_drawing(context)
        _lay_out(inputs[0], _named(out), layout, split, workers or 1)
        return
    if layout != "even":
        raise InputError(f"--layout {layout} takes rendered rows\n  render first, then name that OUT/train as CORPUS")
    if renderer is None:
        raise InputError("nothing says how to draw\n  name a renderer or a font by --renderer")
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
        raise InputError(f"--split {split} names the files of rows that are laid out anew\n  leave out --split")
    documents = find_documents(inputs, format, text_key)
    drawn_by = open_renderer(renderer, max_patches)
    if dry_run:
        with tempfile.TemporaryDirectory() as work, shown_stages() as progress:
            found = measure(documents, drawn_by, settings, Path(work), workers=workers, progress=progress)
        if json_output:
            typer.echo(json.dumps(vars(found)))
            return
        typer.echo(
            f"{amount(found.num_documents, 'document')} would be {amount(found.num_rows, 'row')} with "
            f"{found.num_patches:,} text patches, {found.fill_rate:.1%} full"
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
    out = _named(out)
    with shown_stages() as progress:
        manifests = prerender(documents, drawn_by, out, settings, workers=workers, progress=progress)
    _report(out, manifests, json_output)


def _report(out: Path, manifests: dict[str, dict[str, Any]], json_output: bool) -> None:
    if json_output:
        typer.echo(json.dumps(manifests, ensure_ascii=False))
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


def _refuse_options_of_drawing(context: typer.Context) -> None:
    """Rows are laid out anew as they are: options that say how to make them would have no effect."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name not in _OF_ROWS and source is not None and source.name == "COMMANDLINE":
            raise InputError(
                f"{parameter.opts[0]} is for documents, and CORPUS holds rows that are drawn already\n"
                f"  leave out {parameter.opts[0]}, or render the documents with it"
            )


def _named(out: Path | None) -> Path:
    if out is None:
        raise InputError("no output folder\n  name one by --out, or only look with --dry-run")
    return out


def _lay_out(folder: str, out: Path, layout: Layout, split: str, workers: int) -> None:
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
