"""`pretrainkit corpus stats`: statistics of a corpus, in numbers and as a page."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from pretrainkit.cli.corpus_options import Format, Inputs, echo_skipped, named, shown_progress
from pretrainkit.cli.options import Json, MaxBad, TextKey, Workers, print_json

_NUM_SAMPLED = 1000


def stats(
    inputs: Inputs = None,
    *,
    page: Annotated[
        Path | None,
        Option(
            help="Also write this HTML page, with charts of lengths, languages and duplicates (also near duplicates), "
            "and sample texts."
        ),
    ] = None,
    title: Annotated[str | None, Option(help="Heading of the page.", show_default="the INPUT")] = None,
    format: Format = "auto",
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
    workers: Workers = None,
    json_output: Json = False,
) -> None:
    """Count documents, words, bytes and duplicates, and show the distribution of lengths."""
    from pretrainkit.corpus.duplicates import DuplicateRule, find_duplicates
    from pretrainkit.corpus.minhash import MinHash
    from pretrainkit.corpus.stats import corpus_stats, language_counts
    from pretrainkit.files.outputs import folder_beside
    from pretrainkit.files.sources import find_sources
    from pretrainkit.report.corpus_page import write_corpus_page
    from pretrainkit.workers.engine import LOCAL, StageRunner
    from pretrainkit.workers.processes import DEFAULT_MEMORY, Quiet

    sources = find_sources(named(inputs), format)
    with shown_progress(sources) as progress:
        options: dict[str, Any] = {"text_key": text_key, "max_bad": max_bad, "workers": workers}
        result = corpus_stats(sources, **options, progress=progress, num_sampled=_NUM_SAMPLED if page else 0)
        if page is not None:
            with folder_beside(page) as folder:
                progress.note("looking for near duplicates")
                runner, rule = (
                    StageRunner(LOCAL, options.pop("workers"), DEFAULT_MEMORY, Quiet()),
                    DuplicateRule(minhash=MinHash()),
                )
                duplicates = find_duplicates(sources, folder, rule, runner=runner, **options)
            result["num_near_duplicates"] = duplicates.num_dropped - result["num_duplicates"]
            label, counts = language_counts(text for text, _ in result["sample"])
            if label == "script":
                progress.note(
                    "the page shows scripts; to show languages, install py3langid: pip install 'pretrainkit[languages]'"
                )
            result["languages"] = {"of": label, "counts": counts}
            write_corpus_page(result, page, title=title or ", ".join(inputs or ()))
    if json_output:
        print_json({key: value for key, value in result.items() if key != "sample"})
        return
    for key, value in result.items():
        if isinstance(value, int):
            typer.echo(f"{key.removeprefix('num_').replace('_', ' '):<24}{value:>16,}")
    for key in ("words_per_document", "text_bytes_per_document"):
        line = "  ".join(f"{name} {value:,.0f}" for name, value in result[key].items())
        typer.echo(f"{key.replace('_', ' '):<24}  {line}")
    for name, count in result["datasets"].items():
        typer.echo(f"  {name:<22}{count:>16,} documents")
    if page is not None:
        typer.echo(f"page: {page}")
    echo_skipped(result["skipped"])
