"""Parts of a project's proposal that recipes for text share: shards, held-out text, vocabulary, tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from pretrainkit.corpus.stats import most_frequent
from pretrainkit.corpus.survey import LeftOut, TextSurvey, inputs_of, survey_text
from pretrainkit.errors import DataError
from pretrainkit.recipes.proposal import MOST_PASSES, Decision, ProjectRequest, Stage

CORPUS, WORDS, TOKENIZER, TOKENS = "data/corpus", "data/words.tsv", "data/tokenizer", "data/tokens"
BYTES_PER_TOKEN = 4.0
"""Usual number of bytes per token of a unigram vocabulary with thousands of pieces."""
_LEAST_BYTES = 5_000
_HELDOUT_SHARE, _MOST_HELDOUT_BYTES = 0.05, 1_000_000
_SHARD_BYTES = 64_000_000
_VOCABULARIES = ((4e6, 4096), (20e6, 8192), (200e6, 16_384), (math.inf, 32_128))
"""(limit, pieces): the usual number of pieces of a vocabulary for fewer bytes of text than the limit."""
_FORMATS = {
    "book": "one document per file",
    "text": "plain text, blank lines between documents",
    "jsonl": "JSON lines",
    "parquet": "parquet",
    "arrow": "Arrow",
    "dump": "Wikipedia dump",
}
_SMALL_HOURS, _SMALL_BYTES = 0.75, 5_000_000
"""Hours without an accelerator, and bytes, below which the smallest model is proposed."""


@dataclass(frozen=True)
class PreparedText:
    """Text with the decisions on its shards."""

    survey: TextSurvey
    facts: dict[str, str]
    left_out: tuple[LeftOut, ...]
    decisions: tuple[Decision, ...]
    stages: tuple[Stage, ...]
    num_train_bytes: int


def prepare_text(request: ProjectRequest, paths: Sequence[str] | None = None) -> PreparedText:
    """Survey the text of `paths` (default: all data of the request) and decide on shards and held-out text. Raises
    DataError if there is no text, or too little to hold some out."""
    paths = request.data if paths is None else paths
    survey = survey_text(paths, request.progress)
    heldout = survey.heldout_share(int(min(_HELDOUT_SHARE * survey.num_bytes, _MOST_HELDOUT_BYTES)))
    if survey.num_bytes < _LEAST_BYTES or heldout is None:
        raise _too_little(survey, paths)
    share, num_held_out, held_out_bytes = heldout
    num_shards = max(
        1, math.ceil(survey.num_bytes / _SHARD_BYTES), min(request.num_cores, int(survey.num_bytes / _SHARD_BYTES * 8))
    )
    median = sorted(survey.text_bytes_D.tolist())[survey.num_documents // 2]
    facts = {
        "files": ", ".join(f"{count:,} ({_FORMATS[name]})" for name, count in survey.formats.items()),
        "documents": f"{survey.num_documents:,}, half of them longer than {size(median)}",
        "text": size(survey.num_bytes),
        f"{survey.language_or_script}s": most_frequent(survey.languages),
    }
    if survey.num_duplicates:
        facts["duplicates"] = f"{survey.num_duplicates:,} documents occur more than once (they are kept)"
    decisions = [
        *_format_decisions(survey),
        Decision(
            "held-out share",
            share,
            f"holds out {num_held_out:,} of {survey.num_documents:,} documents, {size(held_out_bytes)}: about 5 % of "
            "the text, at most 1 MB, at least one document",
            is_setting=False,
        ),
        Decision(
            "shards",
            num_shards,
            "about 64 MB each" if num_shards > 1 else "text below 64 MB needs one",
            is_setting=False,
        ),
    ]
    books = [source for source in survey.sources if source.format == "book"]
    others = [source for source in survey.sources if source.format != "book"]
    command = (
        *("corpus", "shards", *inputs_of(others, paths)),
        *chain.from_iterable(("--books", pattern) for pattern in inputs_of(books, paths)),
        *("--out", CORPUS, "--num-shards", str(num_shards), "--heldout", repr(share)),
        *(("--text-key", survey.text_key) if survey.text_key != "text" else ()),
        *(("--max-bad", str(survey.num_bad)) if survey.num_bad else ()),
    )
    # Once the shards exist, the raw files are no longer needed.
    stage = Stage(
        "Shuffle the documents into shards and hold some out", command, unless=f"{CORPUS}/valid/manifest.json"
    )
    return PreparedText(survey, facts, survey.left_out, tuple(decisions), (stage,), survey.num_bytes - held_out_bytes)


def vocabulary_size(survey: TextSurvey) -> Decision:
    """Decide on the number of pieces of a unigram vocabulary."""
    by_size = next(pieces for num_bytes, pieces in _VOCABULARIES if survey.num_bytes < num_bytes)
    # 256 bytes and control pieces come first. A text yields at least about a third as many pieces as different words.
    reachable = 261 + survey.num_distinct_characters + survey.num_distinct_words // 3
    reason = f"usual for {size(survey.num_bytes)} of text"
    if reachable < by_size:
        reason = f"the number that {survey.num_distinct_words:,} different words surely yield"
    return Decision("vocabulary", min(by_size, reachable), reason, is_setting=False)


def token_stages(
    vocab_size: int, *, layout: Sequence[str] = (), has_sentences: bool, splitter: Sequence[str] = ()
) -> tuple[Stage, ...]:
    """Return the stages from shards to tokens."""
    train = f"{CORPUS}/train/*.jsonl"
    sentences = ("--sentences-from", train) if has_sentences else ()
    return (
        Stage("Count words", ("corpus", "count-words", train, "--out", WORDS)),
        Stage(
            "Train a vocabulary",
            ("tokenizer", "train", WORDS, *layout, "--vocab-size", str(vocab_size), *sentences, "--out", TOKENIZER),
            unless=f"{TOKENIZER}/manifest.json",
        ),
        Stage("Encode the text", ("tokenizer", "encode", CORPUS, "--tokenizer", TOKENIZER, *splitter, "--out", TOKENS)),
    )


def training_decisions(
    request: ProjectRequest, data: str, batch_size: int, num_examples: float, most_passes: int = MOST_PASSES
) -> tuple[Decision, ...]:
    """Return decisions on data, batch and length for about `num_examples` examples and a preset's `batch_size`."""
    fitting = batch_size
    while fitting > 4 and fitting * 10 > num_examples:
        fitting //= 2
    why = "as in the preset" if fitting == batch_size else "smaller than in the preset, so that a pass has ten steps"
    return (
        Decision("data.train", f"{data}/train", "training data that the commands below create"),
        Decision("data.valid", f"{data}/valid", "held-out data for evaluation"),
        Decision("data.batch_size", fitting, f"{why}; there are about {num_examples:,.0f} examples"),
        *length_decisions(request, most_passes),
    )


def length_decisions(request: ProjectRequest, most_passes: int = MOST_PASSES) -> tuple[Decision, ...]:
    """Return decisions on the length of the training: its steps and epochs."""
    return (
        Decision(
            "num_steps",
            None,
            f"as many as fit into {request.hours:g} hours on this machine: train --hours measures a step in a trial of "
            "up to 20 seconds with the prepared data",
        ),
        Decision("data.num_epochs", most_passes, "upper limit: more passes over the same data teach little"),
    )


def available(request: ProjectRequest, num_bytes: int) -> tuple[str, bool]:
    """Return the hours, the device and the amount of text for people, and True if they are enough only for the smallest
    model."""
    is_small = num_bytes < _SMALL_BYTES or (request.hours < _SMALL_HOURS and not request.has_accelerator)
    return f"{request.hours:g} hours on {request.device} and {size(num_bytes)} of text", is_small


def size(num_bytes: float) -> str:
    """Return bytes for people."""
    if num_bytes < 1e6:
        return f"{num_bytes / 1e3:,.1f} kB"
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:,.1f} GB"


def _format_decisions(survey: TextSurvey) -> list[Decision]:
    num_plain = sum(survey.formats.get(name, 0) for name in ("book", "text"))
    decisions = []
    if "book" in survey.formats:
        reason = f"each of the {num_plain:,} plain files is a document"
        decisions.append(Decision("one document", "a file", reason, is_setting=False))
    if "text" in survey.formats:
        reason = (
            f"{num_plain:,} plain file{'s' * (num_plain > 1)} would be too few documents; there are "
            f"{survey.num_documents:,} blocks"
        )
        decisions.append(Decision("one document", "a block between blank lines", reason, is_setting=False))
    if survey.text_key != "text":
        reason = "the key or column of the first record that holds the text"
        decisions.append(Decision("text key", survey.text_key, reason, is_setting=False))
    return decisions


def _too_little(survey: TextSurvey, paths: Sequence[str]) -> DataError:
    lack = f"{', '.join(paths)}: {survey.num_documents:,} documents with {size(survey.num_bytes)} are too little text"
    if survey.num_bytes < _LEAST_BYTES:
        return DataError(f"{lack}\n  give at least {size(_LEAST_BYTES)}; a model needs about 1 MB to learn something")
    first = survey.sources[0].address
    return DataError(
        f"{lack} to hold some out: held-out documents must differ from those in training\n"
        "  give more files, put blank lines between documents, or cut the file into pieces:\n"
        f"  split -l 1000 {first} piece-"
    )
