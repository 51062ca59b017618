"""`pretrainkit corpus filter`, `dedup`, `split` and `compress`: from documents to fewer, or otherwise kept ones."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pretrainkit.cli.corpus_options import BAD, SEED, Format, Inputs, Out, build_shards, named
from pretrainkit.cli.engines import Execution
from pretrainkit.cli.options import Json
from pretrainkit.cli.settings_options import changed, with_settings
from pretrainkit.corpus.build_settings import BuildSettings
from pretrainkit.corpus.quality import Quality
from pretrainkit.files.sources import find_sources

if TYPE_CHECKING:
    from pretrainkit.corpus.duplicates import DuplicateRule


@dataclass(frozen=True, kw_only=True)
class Alike:
    """What counts as the same document."""

    method: Literal["exact", "minhash"] = "minhash"
    """exact: equal text. minhash: most runs of five words in common, too."""
    bands: int = 14
    """Of minhash: more find documents that are less alike."""
    rows: int = 8
    """Of minhash: hashes that must agree; more find fewer."""

    def rule(self, reason: str) -> "DuplicateRule":
        """Which documents are one too many, counted under `reason`."""
        from pretrainkit.corpus.duplicates import DuplicateRule
        from pretrainkit.corpus.minhash import MinHash

        minhash = MinHash(num_bands=self.bands, rows_per_band=self.rows) if self.method == "minhash" else None
        return DuplicateRule(reason=reason, minhash=minhash)


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
    """Keep documents that read like running text, by Gopher's rules; what goes is counted by rule. Keeps the order."""
    settings = build(seed=None, split_folders=False, quality=quality)
    build_shards(find_sources(named(inputs), format), out, settings, execution, json_output)


@with_settings
def dedup(
    inputs: Inputs = None,
    *,
    out: Out,
    build: Annotated[type[BuildSettings], "num_shards", "alike", "compress", "format", "text_key", BAD],
    alike: Alike,
    format: Format = "auto",
    execution: Execution,
    json_output: Json = False,
) -> None:
    """Keep the first of documents that are equal, or nearly so. Keeps the order."""
    rule = alike.rule("near_duplicate" if alike.method == "minhash" else "exact_duplicate")
    settings = build(seed=None, split_folders=False, duplicates=rule)
    build_shards(find_sources(named(inputs), format), out, settings, execution, json_output)


@with_settings
def split(
    inputs: Inputs = None,
    *,
    out: Out,
    build: Annotated[
        type[BuildSettings],
        *("num_shards", changed("heldout", default=0.01), "alike", "compress", SEED, "format", "text_key", BAD),
    ],
    alike: Alike,
    format: Format = "auto",
    execution: Execution,
    json_output: Json = False,
) -> None:
    """Shuffle into OUT/train and OUT/valid so that nothing held out is also trained on, exactly or nearly.

    As `corpus shards`; in addition, near duplicates of held-out documents leave the training data.
    """
    settings = build(duplicates=alike.rule("duplicate_of_held_out"))
    build_shards(find_sources(named(inputs), format), out, settings, execution, json_output)


@with_settings
def compress_shards(
    inputs: Inputs = None,
    *,
    out: Out,
    num_shards: Annotated[
        int | None, typer.Option(help="Number of shards.", show_default="as many as there are files")
    ] = None,
    build: Annotated[type[BuildSettings], changed("compress", default="zst"), "format", "text_key", BAD],
    format: Format = "auto",
    execution: Execution,
    json_output: Json = False,
) -> None:
    """Write the same documents in the same order as Zstandard shards, or with --compress none as plain ones."""
    sources = find_sources(named(inputs), format)
    settings = build(num_shards=num_shards or len(sources), seed=None, split_folders=False)
    build_shards(sources, out, settings, execution, json_output)
