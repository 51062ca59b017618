"""`pretrainkit corpus hub`: from a data set of the Hugging Face hub to shards."""

from typing import Annotated

import typer

from pretrainkit.cli.corpus_options import SEED, Out, report_corpus, shown_progress
from pretrainkit.cli.engines import Execution
from pretrainkit.cli.options import Json
from pretrainkit.cli.settings_options import changed, with_settings
from pretrainkit.corpus.build_settings import BuildSettings
from pretrainkit.corpus.hub import HubRequest, fetched


@with_settings
def hub(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of a data set, such as allenai/c4, or a folder with its files.")
    ],
    *,
    out: Out,
    request: Annotated[
        type[HubRequest],
        *("config", "split", "column", changed("meta_columns", "--meta", metavar="COLUMN")),
        *("revision", changed("max_documents", show_default="all")),
    ],
    build: Annotated[type[BuildSettings], "num_shards", changed("heldout", default=0.01), "compress", SEED, "shuffle"],
    shuffle: Annotated[bool, typer.Option(help="Shuffle globally, or keep the order of the data set.")] = True,
    execution: Execution,
    json_output: Json = False,
) -> None:
    """Stream a data set of the Hugging Face hub, such as FineWeb, C4 or Wikipedia, into shards: OUT/train, OUT/valid.

    The same command goes on where an interrupted one stopped. The commit that was read stands in the manifest.
    """
    from pretrainkit.corpus.shards import build_corpus

    settings = build() if shuffle else build(seed=None)
    means = execution.means()
    with shown_progress([]) as progress, fetched(request(name=name), out, **means, progress=progress) as sources:
        manifests = build_corpus(sources, out, settings, **means, progress=progress)
    report_corpus(out, manifests, json_output)
