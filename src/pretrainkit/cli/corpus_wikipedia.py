"""`pretrainkit corpus wikipedia`: from a dump to documents."""

from enum import StrEnum
from typing import Annotated

import typer

from pretrainkit.cli.corpus_options import (
    Compress,
    CompressionName,
    Memory,
    NumShards,
    Out,
    byte_count,
    named,
    report_corpus,
    shown_progress,
)
from pretrainkit.cli.engines import EngineChoice, EngineName, RayAddress, Slurm, engine_of
from pretrainkit.cli.options import Json, MaxBad, Workers


class WikiCompat(StrEnum):
    """Whose text to give instead of ours."""

    none = "none"
    wikiextractor = "wikiextractor"


def wikipedia(
    dumps: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DUMP...",
            help="pages-articles dumps of any language, .xml, .xml.bz2 or .xml.gz: files, globs or fsspec addresses.",
            show_default=False,
        ),
    ] = None,
    *,
    out: Out,
    num_shards: NumShards = 8,
    sections: Annotated[bool, typer.Option("--sections", help="Keep section titles, as lines of their own.")] = False,
    lists: Annotated[bool, typer.Option("--lists", help='Keep list items, as lines that begin with "- ".')] = False,
    tables: Annotated[bool, typer.Option("--tables", help="Keep tables, a line per row.")] = False,
    disambiguations: Annotated[bool, typer.Option(help="Keep pages that tell apart what has the same name.")] = True,
    redirects: Annotated[
        bool, typer.Option("--redirects", help="Also write OUT/_redirects.tsv: title TAB the article it leads to.")
    ] = False,
    compress: Compress = CompressionName.none,
    max_bad: MaxBad = 0,
    workers: Workers = None,
    memory: Memory = "1GB",
    engine: EngineChoice = EngineName.local,
    slurm: Slurm = None,
    ray: RayAddress = None,
    compat: Annotated[
        WikiCompat,
        typer.Option(
            help="wikiextractor: the text that WikiExtractor 2.75 gives, with what it loses; titles, lists and "
            "tables as its options --sections, --lists and --keep_tables write them.",
        ),
    ] = WikiCompat.none,
    json_output: Json = False,
) -> None:
    """Turn Wikipedia's dumps into shards of articles in OUT, in the order of the dump, without unpacking them first.

    A document is an article: paragraphs, one per line; its title and number are in `meta`. Redirects and other
    namespaces are left out. A large multistream .bz2 is read by all workers at once; it needs no index.
    """
    from pretrainkit.corpus.shards import BuildSettings, build_corpus
    from pretrainkit.corpus.wikipedia.options import Extraction
    from pretrainkit.corpus.wikipedia.redirects import FOLDER, TABLE, join_redirects
    from pretrainkit.files.sources import find_sources
    from pretrainkit.files.spans import group_sources

    extraction = Extraction(
        sections=sections,
        lists=lists,
        tables=tables,
        disambiguations=disambiguations,
        compat=compat.value,
        redirects=str(out / FOLDER) if redirects else None,
    )
    sources = find_sources(named(dumps), "dump", options=extraction)
    settings = BuildSettings(
        num_shards=num_shards, seed=None, compress=compress.value, split_folders=False, max_bad=max_bad
    )
    with shown_progress(sources) as progress:
        manifests = build_corpus(
            sources,
            out,
            settings,
            workers=workers,
            memory_bytes=byte_count(memory),
            engine=engine_of(engine, slurm, ray),
            progress=progress,
        )
        stretches = (source for group in group_sources(sources) for _, source in group)
        num_redirects = join_redirects(out, stretches) if redirects else None
        if num_redirects is not None:
            progress.note(f"{out / TABLE}: where {num_redirects:,} redirects lead")
    report_corpus(out, manifests, json_output)
