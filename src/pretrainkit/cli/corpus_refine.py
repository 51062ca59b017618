"""`pretrainkit corpus filter`, `dedup`, `split` and `compress`: from documents to fewer, or otherwise kept ones."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

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
    byte_count,
    named,
    report_corpus,
    shown_progress,
)
from pretrainkit.cli.options import Json, MaxBad, TextKey, Workers


class MethodName(StrEnum):
    """What counts as the same document."""

    exact = "exact"
    minhash = "minhash"


Method = Annotated[MethodName, typer.Option(help="exact: equal text. minhash: most runs of five words in common, too.")]
Bands = Annotated[int, typer.Option(help="Of minhash: more find documents that are less alike.")]
Rows = Annotated[int, typer.Option(help="Of minhash: hashes that must agree; more find fewer.")]


def filter_documents(
    inputs: Inputs = None,
    *,
    out: Out,
    num_shards: NumShards = 8,
    min_words: Annotated[int, typer.Option(help="Documents with fewer words go.")] = 50,
    max_words: Annotated[int, typer.Option(help="Documents with more words go.")] = 100_000,
    min_stop_words: Annotated[
        int, typer.Option(help="English stop words, of eight, that must occur; 2 as in Gopher, 0 for any language.")
    ] = 0,
    compress: Compress = CompressionName.none,
    format: Format = FormatName.auto,
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    workers: Workers = None,
    memory: Memory = "1GB",
    json_output: Json = False,
) -> None:
    """Keep documents that read like running text, by Gopher's rules; what goes is counted by rule. Keeps the order."""
    from pretrainkit.corpus.quality import Quality

    quality = Quality(min_words=min_words, max_words=max_words, min_stop_words=min_stop_words)
    settings = _in_order(num_shards, compress, text_key, max_bad) | {"quality": quality}
    _build(named(inputs), format, out, settings, workers, memory, json_output)


def dedup(
    inputs: Inputs = None,
    *,
    out: Out,
    num_shards: NumShards = 8,
    method: Method = MethodName.minhash,
    bands: Bands = 14,
    rows: Rows = 8,
    compress: Compress = CompressionName.none,
    format: Format = FormatName.auto,
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    workers: Workers = None,
    memory: Memory = "1GB",
    json_output: Json = False,
) -> None:
    """Keep the first of documents that are equal, or nearly so. Keeps the order."""
    reason = "near_duplicate" if method is MethodName.minhash else "exact_duplicate"
    settings = _in_order(num_shards, compress, text_key, max_bad) | {"drop_reason": reason}
    _build(named(inputs), format, out, settings, workers, memory, json_output, method, bands, rows)


def split(
    inputs: Inputs = None,
    *,
    out: Out,
    num_shards: NumShards = 8,
    heldout: Annotated[float, typer.Option(help="Share of documents for OUT/valid, by a hash of their text.")] = 0.01,
    method: Method = MethodName.minhash,
    bands: Bands = 14,
    rows: Rows = 8,
    compress: Compress = CompressionName.none,
    seed: Seed = 0,
    format: Format = FormatName.auto,
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    workers: Workers = None,
    memory: Memory = "1GB",
    json_output: Json = False,
) -> None:
    """Shuffle into OUT/train and OUT/valid so that nothing held out is also trained on, exactly or nearly.

    As `corpus shards`; in addition, near duplicates of held-out documents leave the training data.
    """
    settings: dict[str, Any] = {
        "num_shards": num_shards,
        "heldout": heldout,
        "seed": seed,
        "compress": compress.value,
        "text_key": text_key,
        "max_bad": max_bad,
        "drop_reason": "duplicate_of_held_out",
    }
    _build(named(inputs), format, out, settings, workers, memory, json_output, method, bands, rows)


def compress_shards(
    inputs: Inputs = None,
    *,
    out: Out,
    num_shards: Annotated[
        int | None, typer.Option(help="Number of shards.", show_default="as many as there are files")
    ] = None,
    compress: Compress = CompressionName.zst,
    format: Format = FormatName.auto,
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    workers: Workers = None,
    memory: Memory = "1GB",
    json_output: Json = False,
) -> None:
    """Write the same documents in the same order as Zstandard shards, or with --compress none as plain ones."""
    from pretrainkit.corpus.sources import find_sources

    num_shards = num_shards or len(find_sources(named(inputs), format.value))
    settings = _in_order(num_shards, compress, text_key, max_bad)
    _build(named(inputs), format, out, settings, workers, memory, json_output)


def _in_order(num_shards: int, compress: CompressionName, text_key: str, max_bad: float) -> dict[str, Any]:
    """Settings of a corpus in one folder that keeps the order of its input."""
    return {
        "num_shards": num_shards,
        "seed": None,
        "compress": compress.value,
        "split_folders": False,
        "text_key": text_key,
        "max_bad": max_bad,
    }


def _build(
    inputs: list[str],
    format: FormatName,
    out: Path,
    settings: dict[str, Any],
    workers: int | None,
    memory: str,
    json_output: bool,
    method: MethodName | None = None,
    bands: int = 1,
    rows: int = 1,
) -> None:
    """Shards of what is left of the input; with a method, after a pass that finds duplicates."""
    from pretrainkit.corpus.duplicates import find_duplicates
    from pretrainkit.corpus.minhash import MinHash
    from pretrainkit.corpus.shards import BuildSettings, build_corpus
    from pretrainkit.corpus.sources import find_sources

    BuildSettings(**settings)  # wrong options are said before the first pass
    sources = find_sources(inputs, format.value)
    with shown_progress(sources) as progress:
        if method is not None:
            minhash = MinHash(num_bands=bands, rows_per_band=rows) if method is MethodName.minhash else None
            found = find_duplicates(
                sources,
                out,
                minhash,
                heldout=settings.get("heldout", 0.0),
                text_key=settings["text_key"],
                max_bad=settings["max_bad"],
                workers=workers,
                progress=progress,
            )
            progress.note(f"{found.num_dropped:,} of {found.num_documents:,} documents are left out")
            settings |= {"drop_fingerprint": found.drop_fingerprint}
        manifests = build_corpus(
            sources, out, BuildSettings(**settings), workers=workers, memory_bytes=byte_count(memory), progress=progress
        )
    report_corpus(out, manifests, json_output)
