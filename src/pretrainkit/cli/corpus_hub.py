"""`pretrainkit corpus hub`: from a data set of the Hugging Face hub to shards."""

from typing import Annotated

import typer

from pretrainkit.cli.corpus_options import (
    Compress,
    CompressionName,
    Memory,
    NumShards,
    Out,
    Seed,
    byte_count,
    report_corpus,
    shown_progress,
)
from pretrainkit.cli.engines import EngineChoice, EngineName, RayAddress, Slurm, engine_of
from pretrainkit.cli.options import Json, Workers


def hub(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of a data set, such as allenai/c4, or a folder with its files.")
    ],
    *,
    out: Out,
    config: Annotated[
        str | None, typer.Option(help="Name of a configuration, such as en or 20231101.bg.", show_default=False)
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the data set.")] = "train",
    column: Annotated[str, typer.Option(help="Column that holds the text.")] = "text",
    meta: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Keep a column in meta, such as url; may be repeated.", show_default=False),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit.", show_default="the default branch as it is now")
    ] = None,
    max_documents: Annotated[
        int | None, typer.Option(help="Take the first of them only; one process streams then.", show_default="all")
    ] = None,
    num_shards: NumShards = 8,
    heldout: Annotated[float, typer.Option(help="Share of documents for OUT/valid, by a hash of their text.")] = 0.01,
    compress: Compress = CompressionName.none,
    seed: Seed = 0,
    shuffle: Annotated[bool, typer.Option(help="Shuffle globally, or keep the order of the data set.")] = True,
    workers: Workers = None,
    memory: Memory = "1GB",
    engine: EngineChoice = EngineName.local,
    slurm: Slurm = None,
    ray: RayAddress = None,
    json_output: Json = False,
) -> None:
    """Stream a data set of the Hugging Face hub, such as FineWeb, C4 or Wikipedia, into shards: OUT/train, OUT/valid.

    The same command goes on where an interrupted one stopped. The commit that was read stands in the manifest.
    """
    from pretrainkit.corpus.hub import HubRequest, fetched
    from pretrainkit.corpus.shards import BuildSettings, build_corpus

    request = HubRequest(
        name=name,
        config=config,
        split=split,
        column=column,
        meta_columns=tuple(meta or ()),
        revision=revision,
        max_documents=max_documents,
    )
    settings = BuildSettings(
        num_shards=num_shards, heldout=heldout, seed=seed if shuffle else None, compress=compress.value
    )
    memory_bytes, chosen = byte_count(memory), engine_of(engine, slurm, ray)
    with shown_progress([]) as progress:
        found = fetched(request, out, workers=workers, memory_bytes=memory_bytes, engine=chosen, progress=progress)
        with found as sources:
            manifests = build_corpus(
                sources, out, settings, workers=workers, memory_bytes=memory_bytes, engine=chosen, progress=progress
            )
    report_corpus(out, manifests, json_output)
