"""Proposal of a BERT project from raw text."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pretrainkit.corpus.survey import TextSurvey
from pretrainkit.recipes.bert.source import MIN_PAIRS
from pretrainkit.recipes.proposal import Decision, ProjectRequest, Proposal
from pretrainkit.recipes.text_projects import (
    BYTES_PER_TOKEN,
    TOKENS,
    available,
    prepare_text,
    token_stages,
    training_decisions,
    vocabulary_size,
)
from pretrainkit.tokenizers.sentences import PlainSplitter

_LARGE_BYTES, _LARGE_HOURS = 200_000_000, 2.0
_LENGTHS = (64, 128)
_FILLED = 0.8
"""Usual share of max_seq_length that whole sentences fill."""
_SPLITTERS = ("regex", "newline")


def propose(request: ProjectRequest) -> Proposal:
    """Return the proposal. Raises DataError if there is too little text."""
    text = prepare_text(request)
    num_bytes = text.survey.num_bytes
    preset, batch_size, length, why = choose_preset(request, num_bytes)
    longest = float(np.percentile(text.survey.text_bytes_D, 90)) / BYTES_PER_TOKEN
    fitting = next((shorter for shorter in _LENGTHS if longest <= shorter < length), length)
    reason = "as in the preset"
    if fitting < length:
        reason = f"nine of ten documents have fewer than about {longest:.0f} tokens"
    vocabulary, sentences = vocabulary_size(text.survey), sentence_decision(text.survey)
    is_by_line = sentences is not None and sentences.value == "lines"
    splitter = ("--splitter", "newline") if is_by_line else ()
    num_examples = max(1.0, text.num_train_bytes / BYTES_PER_TOKEN / (_FILLED * min(fitting, max(longest, 8))))
    return Proposal(
        preset=preset,
        facts=text.facts,
        left_out=text.left_out,
        decisions=(
            *text.decisions,
            vocabulary,
            *(() if sentences is None else (sentences,)),
            Decision("preset", preset, why, is_setting=False),
            Decision("data.max_seq_length", fitting, f"{reason}; the maximum length, in tokens"),
            *training_decisions(request, TOKENS, batch_size, num_examples),
        ),
        stages=(*text.stages, *token_stages(vocabulary.value, has_sentences=not splitter, splitter=splitter)),
        export_format="huggingface",
    )


def sentence_decision(survey: TextSurvey) -> Decision | None:
    """Return the decision on sentences of text without full stops, such as Thai; None if there are stops."""
    stops, lines = (np.mean([len(PlainSplitter(name)(text)) > 1 for text in survey.sample]) for name in _SPLITTERS)
    if stops >= MIN_PAIRS:
        return None
    few = f"{100 * stops:.0f} % of the documents have full stops between sentences"
    if lines >= MIN_PAIRS:
        return Decision("sentences", "lines", few, is_setting=False)
    return Decision("objective.sentence_order", False, f"{few}, and {100 * lines:.0f} % have several lines")


class Preset(NamedTuple):
    """A preset for the text and the hardware."""

    name: str
    batch_size: int
    length: int
    """Maximum number of tokens of an example."""
    reason: str


def choose_preset(request: ProjectRequest, num_bytes: int) -> Preset:
    """Return the largest preset that is worth training with this amount of text and the hours of the request."""
    given, is_small = available(request, num_bytes)
    if request.has_accelerator and num_bytes >= _LARGE_BYTES and request.hours >= _LARGE_HOURS:
        return Preset("bert/modern-base", 512, 1024, f"{given}: enough for 136 M parameters")
    if is_small:
        return Preset("bert/modern-tiny", 32, 128, f"{given}: two layers learn the most from little text or time")
    return Preset("bert/modern-mini", 32, 128, f"{given}: four layers, the smallest model worth fine-tuning")
