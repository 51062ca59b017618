"""`pretrainkit corpus filter`, `dedup`, `split` and `compress`: from documents to fewer, or otherwise kept ones."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    build_shards,
    named,
)
from pretrainkit.cli.engines import EngineChoice, EngineName, RayAddress, Slurm, engine_of
from pretrainkit.cli.options import Json, MaxBad, TextKey, Workers

if TYPE_CHECKING:
    from pretrainkit.workers.engine import Engine


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
    engine: EngineChoice = EngineName.local,
    slurm: Slurm = None,
    ray: RayAddress = None,
    json_output: Json = False,
) -> None:
    """Keep documents that read like running text, by Gopher's rules; what goes is counted by rule. Keeps the order."""
    from pretrainkit.corpus.quality import Quality

    quality = Quality(min_words=min_words, max_words=max_words, min_stop_words=min_stop_words)
    settings = _in_order(num_shards, compress, text_key, max_bad) | {"quality": quality}
    _build(named(inputs), format, out, settings, workers, memory, engine_of(engine, slurm, ray), json_output)


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
    engine: EngineChoice = EngineName.local,
    slurm: Slurm = None,
    ray: RayAddress = None,
    json_output: Json = False,
) -> None:
    """Keep the first of documents that are equal, or nearly so. Keeps the order."""
    reason = "near_duplicate" if method is MethodName.minhash else "exact_duplicate"
    settings = _in_order(num_shards, compress, text_key, max_bad) | {"duplicates": _rule(reason, method, bands, rows)}
    _build(named(inputs), format, out, settings, workers, memory, engine_of(engine, slurm, ray), json_output)


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
    engine: EngineChoice = EngineName.local,
    slurm: Slurm = None,
    ray: RayAddress = None,
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
        "duplicates": _rule("duplicate_of_held_out", method, bands, rows),
    }
    _build(named(inputs), format, out, settings, workers, memory, engine_of(engine, slurm, ray), json_output)


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
    engine: EngineChoice = EngineName.local,
    slurm: Slurm = None,
    ray: RayAddress = None,
    json_output: Json = False,
) -> None:
    """Write the same documents in the same order as Zstandard shards, or with --compress none as plain ones."""
    from pretrainkit.files.sources import find_sources

    num_shards = num_shards or len(find_sources(named(inputs), format.value))
    settings = _in_order(num_shards, compress, text_key, max_bad)
    _build(named(inputs), format, out, settings, workers, memory, engine_of(engine, slurm, ray), json_output)


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


def _rule(reason: str, method: MethodName, bands: int, rows: int) -> Any:
    """Which documents are one too many."""
    from pretrainkit.corpus.duplicates import DuplicateRule
    from pretrainkit.corpus.minhash import MinHash

    minhash = MinHash(num_bands=bands, rows_per_band=rows) if method is MethodName.minhash else None
    return DuplicateRule(reason=reason, minhash=minhash)


def _build(
    inputs: list[str],
    format: FormatName,
    out: Path,
    settings: dict[str, Any],
    workers: int | None,
    memory: str,
    engine: "Engine",
    json_output: bool,
) -> None:
    """Shards of what is left of the input."""
    from pretrainkit.corpus.shards import BuildSettings
    from pretrainkit.files.sources import find_sources

    checked = BuildSettings(**settings)
    sources = find_sources(inputs, format.value)
    build_shards(sources, out, checked, workers, memory, engine, json_output)
