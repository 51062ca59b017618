"""`pretrainkit corpus pack`, `unpack` and `bert-text`: corpora for other machines and other programs."""

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from pretrainkit.cli.corpus_options import Format, Inputs, echo_skipped, named
from pretrainkit.cli.options import Json, MaxBad, TextKey
from pretrainkit.cli.stages import amount


def pack(
    folders: Annotated[
        list[Path], Argument(metavar="FOLDER...", help="Finished folders: shards, tokenizers, token shards.")
    ],
    *,
    out: Annotated[Path, Option(help="The archive to write, .tar.")],
    json_output: Json = False,
) -> None:
    """Put folders into one archive with the checksum of every file, to carry to other machines."""
    from pretrainkit.corpus.pack import pack

    _say(out, pack(folders, out), json_output)


def unpack(
    archive: Annotated[Path, Argument(metavar="ARCHIVE", help="What `corpus pack` wrote.")],
    *,
    out: Annotated[Path, Option(help="Folder in which the packed folders appear.")],
    json_output: Json = False,
) -> None:
    """Take the folders out of an archive of `corpus pack`, checking every file."""
    from pretrainkit.corpus.pack import unpack

    _say(out, unpack(archive, out), json_output)


def _say(place: Path, contents: dict[str, list[dict[str, int]]], json_output: bool) -> None:
    if json_output:
        typer.echo(json.dumps(contents, ensure_ascii=False))
        return
    files = contents["files"]
    total = sum(entry["num_bytes"] for entry in files)
    typer.echo(f"{place}: {amount(len(files), 'file')}, {total / 1e6:,.1f} MB, all checksums are right")


def bert_text(
    inputs: Inputs = None,
    *,
    out: Annotated[Path, Option(help="The text file to write.")],
    punkt: Annotated[
        Path | None, Option(help="punkt.json of a tokenizer folder; else sentences end after stops.")
    ] = None,
    format: Format = "auto",
    text_key: TextKey = "text",
    max_bad: MaxBad = 0,
) -> None:
    """Write documents as BERT text: one sentence per line, a blank line between documents. It is read as such, too."""
    from pretrainkit.corpus.bert_text import write_bert_text
    from pretrainkit.corpus.readers import read_documents
    from pretrainkit.files.skips import Skips
    from pretrainkit.files.sources import find_sources
    from pretrainkit.tokenizers.sentences import load_splitter

    skips = Skips(max_bad)
    documents = read_documents(find_sources(named(inputs), format), skips, text_key=text_key)
    splitter = load_splitter("punkt", punkt) if punkt else load_splitter("regex")
    num_documents, num_sentences = write_bert_text(documents, splitter, out)
    typer.echo(f"{out}: {amount(num_documents, 'document')}, {amount(num_sentences, 'sentence')}")
    echo_skipped(skips.for_manifest())
