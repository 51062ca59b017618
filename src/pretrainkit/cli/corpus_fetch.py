"""`pretrainkit corpus wikipedia` and `corpus hub`: from dumps and from data sets of the hub to shards."""

from dataclasses import replace
from typing import Annotated

from typer import Argument, Option

from pretrainkit.cli.corpus_options import BAD, SEED, Out, named, report_corpus, shown_progress
from pretrainkit.cli.options import Execution, Json
from pretrainkit.cli.settings_options import changed, with_settings
from pretrainkit.corpus.build_settings import BuildSettings, HubRequest
from pretrainkit.corpus.wikipedia.options import Compat, Extraction
from pretrainkit.files.sources import find_sources


@with_settings
def wikipedia(
    dumps: Annotated[
        list[str] | None,
        Argument(
            metavar="DUMP...",
            help="pages-articles dumps of any language, .xml, .xml.bz2 or .xml.gz: files, globs or fsspec addresses.",
        ),
    ] = None,
    *,
    out: Out,
    build: Annotated[type[BuildSettings], "num_shards", "extraction", "redirects", "compress", BAD],
    extraction: Annotated[Extraction, "sections", "lists", "tables", "disambiguations"],
    redirects: Annotated[
        bool, Option("--redirects", help="Also write OUT/_redirects.tsv: title TAB the article it leads to.")
    ] = False,
    execution: Execution,
    compat: Annotated[
        Compat,
        Option(
            help="wikiextractor: the text that WikiExtractor 2.75 gives, with what it loses; titles, lists and "
            "tables as its options --sections, --lists and --keep_tables write them."
        ),
    ] = "none",
    json_output: Json = False,
) -> None:
    """Turn Wikipedia's dumps into shards of articles in OUT, in the order of the dump, without unpacking them first.

    A document is an article: paragraphs, one per line; its title and number are in `meta`. Redirects and other
    namespaces are left out. A large multistream .bz2 is read by all workers at once; it needs no index.
    """
    from pretrainkit.corpus.shards import build_corpus
    from pretrainkit.corpus.wikipedia.redirects import FOLDER, TABLE, join_redirects
    from pretrainkit.files.spans import group_sources

    options = replace(extraction, compat=compat, redirects=str(out / FOLDER) if redirects else None)
    sources = find_sources(named(dumps), "dump", options=options)
    settings = build(seed=None, split_folders=False)
    with shown_progress(sources) as progress:
        manifests = build_corpus(sources, out, settings, **execution.means(), progress=progress)
        stretches = (source for group in group_sources(sources) for _, source in group)
        num_redirects = join_redirects(out, stretches) if redirects else None
        if num_redirects is not None:
            progress.note(f"{out / TABLE}: where {num_redirects:,} redirects lead")
    report_corpus(out, manifests, json_output)


@with_settings
def hub(
    name: Annotated[
        str, Argument(metavar="NAME", help="Of a data set, such as allenai/c4, or a folder with its files.")
    ],
    *,
    out: Out,
    request: Annotated[
        type[HubRequest],
        *("config", "split", "column", changed("meta_columns", "--meta", metavar="COLUMN")),
        *("revision", changed("max_documents", show_default="all")),
    ],
    build: Annotated[type[BuildSettings], "num_shards", changed("heldout", default=0.01), "compress", SEED, "shuffle"],
    shuffle: Annotated[bool, Option(help="Shuffle globally, or keep the order of the data set.")] = True,
    execution: Execution,
    json_output: Json = False,
) -> None:
    """Stream a data set of the Hugging Face hub, such as FineWeb, C4 or Wikipedia, into shards: OUT/train, OUT/valid.

    The same command goes on where an interrupted one stopped. The commit that was read stands in the manifest.
    """
    from pretrainkit.corpus.hub import fetched
    from pretrainkit.corpus.shards import build_corpus

    settings = build() if shuffle else build(seed=None)
    means = execution.means()
    with shown_progress([]) as progress, fetched(request(name=name), out, **means, progress=progress) as sources:
        manifests = build_corpus(sources, out, settings, **means, progress=progress)
    report_corpus(out, manifests, json_output)
