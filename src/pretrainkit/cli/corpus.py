"""`pretrainkit corpus`: from raw files to shuffled, checksummed shards; word counts; statistics."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pretrainkit.cli.corpus_carry import bert_text, pack, unpack
from pretrainkit.cli.corpus_hub import hub
from pretrainkit.cli.corpus_options import (
    Compress,
    CompressionName,
    Format,
    FormatName,
    Inputs,
    Memory,
    NumShards,
    Out,
    Seed,
    build_shards,
    byte_count,
    echo_skipped,
    named,
    shown_progress,
)
from pretrainkit.cli.corpus_refine import compress_shards, dedup, filter_documents, split
from pretrainkit.cli.corpus_stats import stats
from pretrainkit.cli.corpus_wikipedia import wikipedia
from pretrainkit.cli.engines import EngineChoice, EngineName, RayAddress, Slurm, engine_of
from pretrainkit.cli.options import Json, MaxBad, TextKey, Workers
from pretrainkit.cli.stages import amount
from pretrainkit.cli.tokenize_images import tokenize_images
from pretrainkit.errors import InputError

if TYPE_CHECKING:
    pass

app = typer.Typer(
    help="Turn raw files into clean, shuffled, checksummed shards; count words; statistics.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("wikipedia")(wikipedia)
app.command("hub")(hub)
app.command("filter")(filter_documents)
app.command("dedup")(dedup)
app.command("split")(split)
app.command("compress")(compress_shards)
app.command("pack")(pack)
app.command("unpack")(unpack)
app.command("bert-text")(bert_text)
app.command("stats")(stats)
app.command("tokenize-images")(tokenize_images)


class AttackName(StrEnum):
    """Errors in words."""

    full_swap = "full-swap"
    inner_swap = "inner-swap"
    disemvowel = "disemvowel"
    truncate = "truncate"
    keyboard_typo = "keyboard-typo"
    natural_typo = "natural-typo"
    intrude = "intrude"
    phonetic = "phonetic"
    confusable = "confusable"
    visual = "visual"
    segmentation = "segmentation"


class OrderName(StrEnum):
    """Orders of word counts."""

    by_count = "count"
    by_bytes = "bytes"
    sabertooth = "sabertooth"


class Compat(StrEnum):
    """Whose rules to follow instead of ours."""

    none = "none"
    sabertooth = "sabertooth"


@app.command()
def shards(
    inputs: Inputs = None,
    *,
    out: Out,
    wiki: Annotated[list[str] | None, typer.Option(help="Extracted Wikipedia files; may be repeated.")] = None,
    books: Annotated[list[str] | None, typer.Option(help="Books, one per file; may be repeated.")] = None,
    num_shards: NumShards = 8,
    heldout: Annotated[
        float | None,
        typer.Option(help="Share of documents for OUT/valid, by a hash of their text.", show_default="0.01"),
    ] = None,
    compress: Compress = CompressionName.none,
    seed: Seed = 0,
    shuffle: Annotated[bool, typer.Option(help="Shuffle globally, or keep the order of the input.")] = True,
    format: Format = FormatName.auto,
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    workers: Workers = None,
    memory: Memory = "1GB",
    engine: EngineChoice = EngineName.local,
    slurm: Slurm = None,
    ray: RayAddress = None,
    compat: Annotated[
        Compat,
        typer.Option(help="sabertooth: its shard sizes, its <doc> rule, one folder, exit status 1 on wrong arguments."),
    ] = Compat.none,
    json_output: Json = False,
) -> None:
    """Shuffle documents into training shards (OUT/train) and held-out shards (OUT/valid).

    The same command goes on where an interrupted one stopped. Shards do not depend on --workers, --memory or --engine.
    """
    from pretrainkit.corpus.shards import BuildSettings, EmptyCorpus
    from pretrainkit.files.sources import find_sources

    is_compat = compat is Compat.sabertooth
    try:
        if is_compat and not out.is_dir():
            raise InputError(f"{out} is not a folder\n  make it first, or leave out --compat sabertooth")
        if is_compat and heldout:
            raise InputError("--compat sabertooth has no held-out data\n  leave out --heldout or --compat")
        if not (inputs or wiki or books):
            raise InputError("nothing to read\n  name INPUT files, --wiki or --books; --help tells more")
        sources = [
            *find_sources(inputs or [], format.value),
            *find_sources(wiki or [], "wiki", dataset="Wikipedia"),
            *find_sources(books or [], "book", dataset="Books"),
        ]
        settings = BuildSettings(
            num_shards=num_shards,
            heldout=0.0 if is_compat else 0.01 if heldout is None else heldout,
            seed=seed if shuffle else None,
            compress=compress.value,
            rule="sabertooth" if is_compat else "even",
            split_folders=not is_compat,
            text_key=text_key,
            max_bad=max_bad,
        )
        build_shards(sources, out, settings, workers, memory, engine_of(engine, slurm, ray), json_output)
    except EmptyCorpus as error:
        if not is_compat:
            raise
        typer.echo(f"no documents: {error}", err=True)
        return
    except InputError as error:
        if not is_compat:
            raise
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


@app.command()
def books(
    inputs: Inputs = None,
    *,
    out: Out,
    num_shards: NumShards = 1,
    strip_licence: Annotated[
        bool, typer.Option("--strip-licence", help="Take out what is outside of Project Gutenberg's marks.")
    ] = False,
    drop_page_numbers: Annotated[
        bool, typer.Option("--drop-page-numbers", help="Take out lines that are only a page number.")
    ] = False,
    join_hyphens: Annotated[
        bool, typer.Option("--join-hyphens", help="Join words that are cut at the end of a line.")
    ] = False,
    compress: Compress = CompressionName.none,
    max_bad: MaxBad = 0,
    workers: Workers = None,
    memory: Memory = "1GB",
    engine: EngineChoice = EngineName.local,
    slurm: Slurm = None,
    ray: RayAddress = None,
    json_output: Json = False,
) -> None:
    """Turn plain-text books, one per file, into shards in OUT, in the order given.

    Lines are trimmed, empty ones dropped; nothing else is cleaned unless it is asked for.
    """
    from pretrainkit.corpus.book_cleaning import BookCleaning
    from pretrainkit.corpus.shards import BuildSettings
    from pretrainkit.files.sources import find_sources

    asked = strip_licence or drop_page_numbers or join_hyphens
    cleaning = BookCleaning(strip_licence=strip_licence, drop_page_numbers=drop_page_numbers, join_hyphens=join_hyphens)
    sources = find_sources(named(inputs), "book", dataset="Books", options=cleaning if asked else None)
    settings = BuildSettings(
        num_shards=num_shards, seed=None, compress=compress.value, split_folders=False, max_bad=max_bad
    )
    build_shards(sources, out, settings, workers, memory, engine_of(engine, slurm, ray), json_output)


@app.command()
def shuffle(
    inputs: Inputs = None,
    *,
    out: Out,
    num_shards: NumShards = 8,
    compress: Compress = CompressionName.none,
    seed: Seed = 0,
    format: Format = FormatName.auto,
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    workers: Workers = None,
    memory: Memory = "300MB",
    engine: EngineChoice = EngineName.local,
    slurm: Slurm = None,
    ray: RayAddress = None,
    json_output: Json = False,
) -> None:
    """Shuffle all documents of INPUT globally into shards in OUT, in bounded memory.

    The order is a function of the seed and the input alone. Disk writes are about twice the text.
    """
    from pretrainkit.corpus.shards import BuildSettings
    from pretrainkit.files.sources import find_sources

    sources = find_sources(named(inputs), format.value)
    settings = BuildSettings(
        num_shards=num_shards,
        seed=seed,
        compress=compress.value,
        split_folders=False,
        text_key=text_key,
        max_bad=max_bad,
    )
    build_shards(sources, out, settings, workers, memory, engine_of(engine, slurm, ray), json_output)


@app.command("count-words")
def count_words(
    inputs: Inputs = None,
    *,
    out: Annotated[str, typer.Option(help="The table to write, word TAB count; - for standard output.")] = "-",
    order: Annotated[OrderName, typer.Option(help="Order of the rows.")] = OrderName.by_count,
    pile_sets: Annotated[
        str | None,
        typer.Option(
            help="Count documents with a meta.pile_set_name only if it is one of these, separated by commas; "
            "sabertooth stands for its 14.",
            show_default=False,
        ),
    ] = None,
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    workers: Workers = None,
    memory: Memory = "1GB",
    engine: EngineChoice = EngineName.local,
    slurm: Slurm = None,
    ray: RayAddress = None,
    json_output: Json = False,
) -> None:
    """Count words (runs of bytes other than space, TAB, LF, CR), exactly and in bounded memory.

    Tables (.tsv) among INPUT are added up. The table does not depend on --workers, --memory or --engine.
    """
    import shutil
    import tempfile

    from pretrainkit.corpus.words import SABERTOOTH_PILE_SETS, count_words
    from pretrainkit.files.sources import find_sources

    wanted: frozenset[str] | None = None
    if pile_sets is not None:
        wanted = frozenset(name.strip() for name in pile_sets.split(",") if name.strip())
        if "sabertooth" in wanted:
            wanted = (wanted - {"sabertooth"}) | SABERTOOTH_PILE_SETS
    if out == "-" and json_output:
        raise InputError("--json and the table would both go to standard output\n  name a file by --out")
    chosen = engine_of(engine, slurm, ray)
    if out == "-" and not chosen.is_local:
        raise InputError(f"--engine {engine.value} needs a folder that all machines see\n  name a file by --out")
    sources = find_sources(named(inputs))
    with tempfile.TemporaryDirectory() as folder, shown_progress(sources) as progress:
        target = Path(folder) / "words.tsv" if out == "-" else Path(out)
        manifest = count_words(
            sources,
            target,
            order=order.value,
            pile_sets=wanted,
            text_key=text_key,
            max_bad=max_bad,
            workers=workers,
            memory_bytes=byte_count(memory),
            engine=chosen,
            progress=progress,
        )
        if out == "-":
            with open(target, "rb") as table:
                shutil.copyfileobj(table, sys.stdout.buffer)
            sys.stdout.flush()
            return
    if json_output:
        typer.echo(json.dumps(manifest, ensure_ascii=False))
    else:
        typer.echo(f"{out}: {manifest['num_distinct_words']:,} different words, {manifest['num_words']:,} in all")
    echo_skipped(manifest["skipped"])


@app.command("corrupt")
def corrupt_words(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Labelled examples: .conllu, .jsonl or .tsv.")],
    *,
    out: Annotated[Path, typer.Option(help="File in the same format.", show_default=False)],
    attack: Annotated[AttackName, typer.Option(help="Kind of error.", show_default=False)],
    severity: Annotated[float, typer.Option(help="Share of the words.")] = 0.5,
    column: Annotated[
        list[str] | None,
        typer.Option(help="Of .jsonl and .tsv: a column of text; may be repeated.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    typos: Annotated[
        Path | None,
        typer.Option(help="For natural-typo: lines of a word and what people wrote instead.", show_default=False),
    ] = None,
) -> None:
    """Write labelled examples again with errors in their words, to see how much a model minds. Labels stay."""
    from pretrainkit.recipes.capabilities import CorruptsWords
    from pretrainkit.recipes.registry import recipes_able

    recipe = next(iter(recipes_able(CorruptsWords).values()))
    num = recipe.write_noisy(file, out, attack.value, severity, columns=column or (), seed=seed, typos=typos)
    typer.echo(f"{out}: {amount(num, 'text')}, {attack.value} of {severity:.0%} of the words")
