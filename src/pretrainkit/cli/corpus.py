"""`pretrainkit corpus`: turn raw files into shuffled, checksummed shards; count words; print statistics."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from pretrainkit.cli.corpus_options import (
    BAD,
    SEED,
    Format,
    Inputs,
    Out,
    build_shards,
    echo_skipped,
    named,
    report_corpus,
    shown_progress,
)
from pretrainkit.cli.corpus_stats import stats
from pretrainkit.cli.options import Averaged, Device, Execution, Json, MaxBad, TextKey, print_json, print_path, shard_of
from pretrainkit.cli.settings_options import changed, with_settings
from pretrainkit.cli.stages import amount, shown_stages
from pretrainkit.corpus.books import BookCleaning
from pretrainkit.corpus.build_settings import BuildSettings, HubRequest
from pretrainkit.corpus.quality import Quality
from pretrainkit.corpus.wikipedia.options import Compat, Extraction
from pretrainkit.corpus.word_tables import Order
from pretrainkit.errors import InputError
from pretrainkit.files.sources import find_sources
from pretrainkit.recipes.attacks import Attack

if TYPE_CHECKING:
    from pretrainkit.corpus.duplicates import DuplicateRule

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.command()(stats)


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Options that decide which documents count as duplicates."""

    method: Literal["exact", "minhash"] = "minhash"
    """exact: documents with equal text. minhash: also documents that share most sequences of five words."""
    bands: int = 14
    """For minhash: number of bands. More bands also find less similar documents."""
    rows: int = 8
    """For minhash: number of hashes per band, which must all agree. More rows find fewer documents."""

    def rule(self, reason: str) -> "DuplicateRule":
        """Return the rule that drops duplicates, and counts them under `reason`."""
        from pretrainkit.corpus.duplicates import DuplicateRule
        from pretrainkit.corpus.minhash import MinHash

        minhash = MinHash(num_bands=self.bands, rows_per_band=self.rows) if self.method == "minhash" else None
        return DuplicateRule(reason=reason, minhash=minhash)


@app.command()
@with_settings
def wikipedia(
    dumps: Annotated[
        list[str] | None,
        Argument(
            metavar="DUMP...",
            help="Dumps named pages-articles, in any language, as .xml, .xml.bz2 or .xml.gz: files, globs or fsspec "
            "addresses.",
        ),
    ] = None,
    *,
    out: Out,
    build: Annotated[type[BuildSettings], "num_shards", "extraction", "redirects", "compress", BAD],
    extraction: Annotated[Extraction, "sections", "lists", "tables", "disambiguations"],
    redirects: Annotated[
        bool, Option("--redirects", help="Also write OUT/_redirects.tsv with lines TITLE TAB TARGET.")
    ] = False,
    execution: Execution,
    compat: Annotated[
        Compat,
        Option(
            help="wikiextractor: write the same text as WikiExtractor 2.75, without what it loses. Titles, lists and "
            "tables are written as by its options --sections, --lists and --keep_tables."
        ),
    ] = "none",
    json_output: Json = False,
) -> None:
    """Turn Wikipedia dumps into shards of articles in OUT, in the order of the dump, without unpacking them first.

    A document is an article, with one paragraph per line. Its title and number are in `meta`. Redirects and other
    namespaces are left out. A large multistream .bz2 file is read by all workers at once, without its index.
    """
    from pretrainkit.corpus.shards import build_corpus
    from pretrainkit.corpus.wikipedia.redirects import FOLDER, TABLE, join_redirects
    from pretrainkit.files.spans import group_sources

    options = replace(extraction, compat=compat, redirects=str(out / FOLDER) if redirects else None)
    sources = find_sources(named(dumps), "dump", options=options)
    settings = build(seed=None, split_folders=False)
    with shown_progress(sources) as progress:
        manifests = build_corpus(sources, out, settings, **execution.arguments(), progress=progress)
        spans = (source for group in group_sources(sources) for _, source in group)
        num_redirects = join_redirects(out, spans) if redirects else None
        if num_redirects is not None:
            progress.note(f"{out / TABLE}: {num_redirects:,} redirects and their targets")
    report_corpus(out, manifests, json_output)


@app.command()
@with_settings
def hub(
    name: Annotated[
        str, Argument(metavar="NAME", help="A data set on the hub, such as allenai/c4, or a folder with its files.")
    ],
    *,
    out: Out,
    request: Annotated[
        type[HubRequest],
        *("config", "split", "column", changed("meta_columns", "--meta", metavar="COLUMN")),
        *("revision", changed("max_documents", show_default="all")),
    ],
    build: Annotated[type[BuildSettings], "num_shards", changed("heldout", default=0.01), "compress", SEED, "shuffle"],
    shuffle: Annotated[bool, Option(help="Shuffle all documents, or keep the order of the data set.")] = True,
    execution: Execution,
    json_output: Json = False,
) -> None:
    """Stream a data set of the Hugging Face hub, such as FineWeb, C4 or Wikipedia, into shards: OUT/train, OUT/valid.

    After an interruption, the same command continues. The manifest records the commit that was read.
    """
    from pretrainkit.corpus.hub import fetched
    from pretrainkit.corpus.shards import build_corpus

    settings = build() if shuffle else build(seed=None)
    means = execution.arguments()
    with shown_progress([]) as progress, fetched(request(name=name), out, **means, progress=progress) as sources:
        manifests = build_corpus(sources, out, settings, **means, progress=progress)
    report_corpus(out, manifests, json_output)


@app.command()
@with_settings
def shards(
    inputs: Inputs = None,
    *,
    out: Out,
    wiki: Annotated[list[str] | None, Option(help="Extracted Wikipedia files. May be repeated.")] = None,
    books: Annotated[list[str] | None, Option(help="Plain-text books, one per file. May be repeated.")] = None,
    build: Annotated[
        type[BuildSettings], "num_shards", "heldout", "compress", SEED, "shuffle", "format", "text_key", BAD
    ],
    heldout: Annotated[
        float | None, Option(help="Share of documents for OUT/valid, by a hash of their text.", show_default="0.01")
    ] = None,
    shuffle: Annotated[bool, Option(help="Shuffle all documents, or keep the order of the input.")] = True,
    format: Format = "auto",
    execution: Execution,
    compat: Annotated[
        Literal["none", "sabertooth"],
        Option(
            help="sabertooth: behave as its script: its shard sizes and <doc> rule, a single folder, and exit code 1 "
            "for wrong arguments."
        ),
    ] = "none",
    json_output: Json = False,
) -> None:
    """Shuffle documents into training shards (OUT/train) and held-out shards (OUT/valid).

    After an interruption, the same command continues. Shards do not depend on --workers, --memory or --engine.
    """
    from pretrainkit.corpus.shards import EmptyCorpus

    is_compat = compat == "sabertooth"
    try:
        if is_compat and not out.is_dir():
            raise InputError(f"{out} is not a folder\n  create it first, or leave out --compat sabertooth")
        if is_compat and heldout:
            raise InputError("--compat sabertooth has no held-out data\n  leave out --heldout or --compat")
        if not (inputs or wiki or books):
            raise InputError("nothing to read\n  name INPUT files, --wiki or --books; --help shows the formats")
        sources = [
            *find_sources(inputs or [], format),
            *find_sources(wiki or [], "wiki", dataset="Wikipedia"),
            *find_sources(books or [], "book", dataset="Books"),
        ]
        settings = build(
            heldout=0.0 if is_compat else 0.01 if heldout is None else heldout,
            rule="sabertooth" if is_compat else "even",
            split_folders=not is_compat,
        )
        build_shards(sources, out, settings if shuffle else replace(settings, seed=None), execution, json_output)
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
@with_settings
def books(
    inputs: Inputs = None,
    *,
    out: Out,
    build: Annotated[type[BuildSettings], changed("num_shards", default=1), "cleaning", "compress", BAD],
    cleaning: BookCleaning,
    execution: Execution,
    json_output: Json = False,
) -> None:
    """Turn plain-text books, one per file, into shards in OUT, in the order given.

    Lines are stripped of spaces at both ends, and empty lines are dropped. Other cleaning needs an option.
    """
    options = None if cleaning == BookCleaning() else cleaning
    sources = find_sources(named(inputs), "book", dataset="Books", options=options)
    build_shards(sources, out, build(seed=None, split_folders=False), execution, json_output)


@app.command()
@with_settings
def shuffle(
    inputs: Inputs = None,
    *,
    out: Out,
    build: Annotated[type[BuildSettings], "num_shards", "compress", SEED, "format", "text_key", BAD],
    format: Format = "auto",
    execution: Annotated[Execution, "workers", changed("memory", default="300MB"), "engine", "slurm", "ray"],
    json_output: Json = False,
) -> None:
    """Shuffle all documents of INPUT globally into shards in OUT, in bounded memory.

    The order depends only on the seed and the input. The command writes about twice the size of the text to disk.
    """
    build_shards(find_sources(named(inputs), format), out, build(split_folders=False), execution, json_output)


@app.command("filter")
@with_settings
def filter_documents(
    inputs: Inputs = None,
    *,
    out: Out,
    build: Annotated[type[BuildSettings], "num_shards", "quality", "compress", "format", "text_key", BAD],
    quality: Annotated[Quality, "min_words", "max_words", "min_stop_words"],
    format: Format = "auto",
    execution: Execution,
    json_output: Json = False,
) -> None:
    """Drop documents that are not running text, by the rules of Gopher, and count them by rule. Keep the order."""
    settings = build(seed=None, split_folders=False, quality=quality)
    build_shards(find_sources(named(inputs), format), out, settings, execution, json_output)


@app.command()
@with_settings
def dedup(
    inputs: Inputs = None,
    *,
    out: Out,
    build: Annotated[type[BuildSettings], "num_shards", "similarity", "compress", "format", "text_key", BAD],
    similarity: Similarity,
    format: Format = "auto",
    execution: Execution,
    json_output: Json = False,
) -> None:
    """Drop documents that repeat an earlier document, exactly or nearly. Keep the order of the others."""
    rule = similarity.rule("near_duplicate" if similarity.method == "minhash" else "exact_duplicate")
    settings = build(seed=None, split_folders=False, duplicates=rule)
    build_shards(find_sources(named(inputs), format), out, settings, execution, json_output)


@app.command()
@with_settings
def split(
    inputs: Inputs = None,
    *,
    out: Out,
    build: Annotated[
        type[BuildSettings],
        *("num_shards", changed("heldout", default=0.01), "similarity", "compress", SEED, "format", "text_key", BAD),
    ],
    similarity: Similarity,
    format: Format = "auto",
    execution: Execution,
    json_output: Json = False,
) -> None:
    """Shuffle into OUT/train and OUT/valid so that no training document repeats a held-out one, exactly or nearly.

    This is like `corpus shards`, but also drops duplicates of held-out documents from the training data.
    """
    settings = build(duplicates=similarity.rule("duplicate_of_held_out"))
    build_shards(find_sources(named(inputs), format), out, settings, execution, json_output)


@app.command("compress")
@with_settings
def compress_shards(
    inputs: Inputs = None,
    *,
    out: Out,
    num_shards: Annotated[
        int | None, Option(help="Number of shards.", show_default="the number of input files")
    ] = None,
    build: Annotated[type[BuildSettings], changed("compress", default="zst"), "format", "text_key", BAD],
    format: Format = "auto",
    execution: Execution,
    json_output: Json = False,
) -> None:
    """Write the same documents in the same order as Zstandard shards, or as plain shards with --compress none."""
    sources = find_sources(named(inputs), format)
    settings = build(num_shards=num_shards or len(sources), seed=None, split_folders=False)
    build_shards(sources, out, settings, execution, json_output)


@app.command("count-words")
@with_settings
def count_words(
    inputs: Inputs = None,
    *,
    out: Annotated[str, Option(help="File for the table, with lines WORD TAB COUNT; - for standard output.")] = "-",
    order: Annotated[Order, Option(help="Order of the rows.")] = "count",
    pile_sets: Annotated[
        str | None,
        Option(
            help="Skip documents whose meta.pile_set_name is not one of these names, separated by commas. sabertooth "
            "means the 14 names that it counts."
        ),
    ] = None,
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    execution: Execution,
    json_output: Json = False,
) -> None:
    """Count words exactly, in bounded memory. A word is a run of bytes other than space, TAB, LF and CR.

    The counts of tables (.tsv) among INPUT are added. The table does not depend on --workers, --memory or --engine.
    """
    import shutil
    import tempfile

    from pretrainkit.corpus.words import SABERTOOTH_PILE_SETS, count_words

    wanted: frozenset[str] | None = None
    if pile_sets is not None:
        wanted = frozenset(name.strip() for name in pile_sets.split(",") if name.strip())
        if "sabertooth" in wanted:
            wanted = (wanted - {"sabertooth"}) | SABERTOOTH_PILE_SETS
    if out == "-" and json_output:
        raise InputError("--json and the table would both be printed to standard output\n  name a file with --out")
    means = execution.arguments()
    if out == "-" and execution.engine != "local":
        raise InputError(
            f"--engine {execution.engine} needs a folder that all machines can read\n  name a file with --out"
        )
    sources = find_sources(named(inputs))
    with tempfile.TemporaryDirectory() as folder, shown_progress(sources) as progress:
        target = Path(folder) / "words.tsv" if out == "-" else Path(out)
        manifest = count_words(
            sources,
            target,
            order=order,
            pile_sets=wanted,
            text_key=text_key,
            max_bad=max_bad,
            **means,
            progress=progress,
        )
        if out == "-":
            with open(target, "rb") as table:
                shutil.copyfileobj(table, sys.stdout.buffer)
            sys.stdout.flush()
            return
    if json_output:
        print_json(manifest)
    else:
        typer.echo(f"{out}: {manifest['num_distinct_words']:,} different words, {manifest['num_words']:,} in all")
    echo_skipped(manifest["skipped"])


@app.command("corrupt")
def corrupt_words(
    file: Annotated[Path, Argument(metavar="FILE", help="File of labelled examples: .conllu, .jsonl or .tsv.")],
    *,
    out: Annotated[Path, Option(help="File to write, in the same format.")],
    attack: Annotated[Attack, Option(help="Kind of spelling error.")],
    severity: Annotated[float, Option(help="Share of the words that get errors, from 0 to 1.")] = 0.5,
    column: Annotated[list[str] | None, Option(help="Text column of .jsonl and .tsv files. May be repeated.")] = None,
    seed: Annotated[int, Option(help="Seed of all random choices.")] = 0,
    typos: Annotated[Path | None, Option(help="For natural-typo: file with a word and its typos in each line.")] = None,
    json_output: Json = False,
) -> None:
    """Write labelled examples with spelling errors, to measure how robust a model is. Labels do not change."""
    from pretrainkit.recipes.capabilities import CorruptsWords
    from pretrainkit.recipes.registry import first_able

    recipe = first_able(CorruptsWords)
    num = recipe.write_noisy(file, out, attack, severity, columns=column or (), seed=seed, typos=typos)
    if json_output:
        print_path(out, True, texts=num)
    else:
        typer.echo(f"{out}: {amount(num, 'text')}, {attack} in {severity:.0%} of the words")


@app.command()
def pack(
    folders: Annotated[
        list[Path], Argument(metavar="FOLDER...", help="Complete folders of shards, tokenizers or token shards.")
    ],
    *,
    out: Annotated[Path, Option(help="Archive to write, .tar.")],
    json_output: Json = False,
) -> None:
    """Write folders to one archive with the checksum of every file, to copy to other machines."""
    from pretrainkit.corpus.pack import pack

    _print_contents(out, pack(folders, out), json_output)


@app.command()
def unpack(
    archive: Annotated[Path, Argument(metavar="ARCHIVE", help="Archive that `corpus pack` wrote.")],
    *,
    out: Annotated[Path, Option(help="Folder in which the packed folders are created.")],
    json_output: Json = False,
) -> None:
    """Extract the folders of an archive of `corpus pack`, and check every file."""
    from pretrainkit.corpus.pack import unpack

    _print_contents(out, unpack(archive, out), json_output)


def _print_contents(place: Path, contents: dict[str, list[dict[str, int]]], json_output: bool) -> None:
    if json_output:
        print_json(contents)
        return
    files = contents["files"]
    total = sum(entry["num_bytes"] for entry in files)
    typer.echo(f"{place}: {amount(len(files), 'file')}, {total / 1e6:,.1f} MB, all checksums are correct")


@app.command()
def bert_text(
    inputs: Inputs = None,
    *,
    out: Annotated[Path, Option(help="Text file to write.")],
    punkt: Annotated[
        Path | None,
        Option(
            help="The punkt.json of a tokenizer folder, to split sentences. Default: split after sentence-final "
            "punctuation."
        ),
    ] = None,
    format: Format = "auto",
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    json_output: Json = False,
) -> None:
    """Write documents as BERT text: one sentence per line, a blank line between documents.

    Other commands read this format, too.
    """
    from pretrainkit.corpus.bert_text import write_bert_text
    from pretrainkit.corpus.readers import read_documents
    from pretrainkit.files.skips import Skips
    from pretrainkit.files.sources import find_sources
    from pretrainkit.tokenizers.sentences import load_splitter

    skips = Skips(max_bad)
    documents = read_documents(find_sources(named(inputs), format), skips, text_key=text_key)
    splitter = load_splitter("punkt", punkt) if punkt else load_splitter("regex")
    num_documents, num_sentences = write_bert_text(documents, splitter, out)
    if json_output:
        print_path(out, True, documents=num_documents, sentences=num_sentences, skipped=skips.for_manifest())
        return
    typer.echo(f"{out}: {amount(num_documents, 'document')}, {amount(num_sentences, 'sentence')}")
    echo_skipped(skips.for_manifest())


@app.command()
def tokenize_images(
    run: Annotated[Path, Argument(help="An image tokenizer: a run folder, a checkpoint in it, or an export.")],
    folders: Annotated[
        list[str],
        Argument(
            metavar="FOLDER...",
            help="Data sets: a folder with a subfolder per modality, or tar files as in 'ROOT/[rgb]/{00..09}.tar'.",
        ),
    ],
    *,
    crops: Annotated[int, Option(min=1, help="Crops of each image: the centre square, then random crops.")] = 1,
    min_scale: Annotated[float, Option(help="Smallest share of an image that a random crop covers.")] = 0.8,
    folder: Annotated[str | None, Option(help="Subfolder of the images. Default: the domain of the tokenizer.")] = None,
    out: Annotated[str | None, Option(help="Name of the subfolder for the tokens. Default: tok_DOMAIN@PIXELS.")] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the random crops.")] = 0,
    shard: Annotated[str, Option(metavar="I/N", help="Process only part I of N, counted from 0.")] = "0/1",
    batch_size: Annotated[int, Option(min=1, help="Images per forward pass.")] = 64,
    averaged: Averaged = False,
    device: Device = None,
    json_output: Json = False,
) -> None:
    """Encode images to tokens for the recipe fourm. The tokens are written beside the images.

    All modalities of a data set have the same crops (FOLDER/crop_settings). After an interruption, the same command
    continues.
    """
    from pretrainkit import api

    part = shard_of(shard)
    with shown_stages() as progress:
        for path in folders:
            manifest = api.tokenize_images(
                run,
                path,
                num_parts=crops,
                min_scale=min_scale,
                folder=folder,
                out=out,
                seed=seed,
                shard=part,
                batch_size=batch_size,
                averaged=averaged,
                device=device,
                progress=progress,
            )
            if json_output:
                print_json(manifest)
            else:
                typer.echo(
                    f"{manifest['folder']}: {manifest['written']} written, {manifest['kept']} kept; "
                    f"{manifest['parts']} x {manifest['tokens']} tokens of {manifest['vocab_size']} each"
                )
