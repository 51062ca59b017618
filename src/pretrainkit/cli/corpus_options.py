"""Options and output that the commands of `pretrainkit corpus` share."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pretrainkit.cli.options import SKIPPED, Execution, print_json
from pretrainkit.cli.settings_options import changed
from pretrainkit.cli.stages import VERBOSITY, amount, shown_stages
from pretrainkit.corpus.build_settings import BuildSettings
from pretrainkit.errors import InputError
from pretrainkit.files.sources import DocumentFormat, SourceFile

if TYPE_CHECKING:
    from pretrainkit.workers.processes import Progress


Inputs = Annotated[
    list[str] | None,
    Argument(
        metavar="INPUT...",
        help="Files, folders, globs (in quotes) or fsspec addresses. Formats: .jsonl, .jsonl.zst, .jsonl.gz, .parquet; "
        "any other file is text with one sentence per line and blank lines between documents.",
    ),
]
Out = Annotated[Path, Option(help="Output folder.")]
Format = Annotated[DocumentFormat, Option(help="Format of every INPUT. auto: by its name.")]
SEED = changed("seed", help="Seed of the shuffle.")
_OF_TEXT = {"", ".txt", ".text", ".md"}
"""Suffixes of text, which is not surprising to be read as such."""
BAD = changed("max_bad", min=0, help=SKIPPED)


def named(inputs: list[str] | None) -> list[str]:
    """Return the inputs. Raises InputError if there are none."""
    if not inputs:
        raise InputError("nothing to read\n  name INPUT files; --help shows the formats")
    return inputs


def build_shards(
    sources: Sequence[SourceFile], out: Path, settings: BuildSettings, execution: Execution, json_output: bool
) -> None:
    """Write shards, and print what was written."""
    from pretrainkit.corpus.shards import build_corpus

    with shown_progress(sources) as progress:
        manifests = build_corpus(sources, out, settings, **execution.arguments(), progress=progress)
    report_corpus(out, manifests, json_output)


def report_corpus(out: Path, manifests: dict[str, dict[str, Any]], json_output: bool) -> None:
    """Print what was written, split by split."""
    if json_output:
        print_json(manifests)
        return
    for split, manifest in manifests.items():
        folder = out / split if len(manifests) > 1 or (out / split).is_dir() else out
        typer.echo(
            f"{folder}: {amount(manifest['num_documents'], 'document')}, {amount(len(manifest['shards']), 'shard')}, "
            f"{manifest['num_bytes'] / 1e6:,.1f} MB, fingerprint {manifest['fingerprint'][:12]}"
        )
    echo_skipped(next(iter(manifests.values()))["skipped"])


def echo_skipped(skipped: dict[str, dict[str, Any]]) -> None:
    """Print to standard error how many records were skipped, by reason, with examples."""
    for reason, entry in skipped.items():
        typer.echo(
            f"skipped: {entry['count']:,} {reason.replace('_', ' ')}, such as {'; '.join(entry['examples'][:2])}",
            err=True,
        )


def shown_progress(sources: Sequence[SourceFile]) -> AbstractContextManager["Progress"]:
    """Print what is read, and show progress like `shown_stages`."""
    total = sum(source.num_bytes for source in sources)
    if sources and os.environ.get(VERBOSITY) != "quiet":
        typer.echo(
            f"{amount(len(sources), 'file')}, {total / 1e6:,.1f} MB; the first is {sources[0].address}", err=True
        )
        suffixes = {source.suffix for source in sources if source.format == "text"}
        if unusual := sorted(suffix for suffix in suffixes - _OF_TEXT if not suffix[1:].isdigit()):
            typer.echo(
                f"files with the suffix {', '.join(unusual[:5])} are read as text: each line is a sentence, and a "
                "blank line ends a document (other formats: --format)",
                err=True,
            )
    return shown_stages()
