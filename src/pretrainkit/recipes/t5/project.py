"""Proposal of a T5 project from raw text."""

from __future__ import annotations

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


def propose(request: ProjectRequest) -> Proposal:
    """Return the proposal. Raises DataError if there is too little text."""
    text = prepare_text(request)
    num_bytes = text.survey.num_bytes
    given, is_small = available(request, num_bytes)
    preset, length, why = "t5/mini", 512, f"{given}: 4 + 4 layers, the smallest model worth fine-tuning"
    if is_small:
        preset, length, why = "t5/micro", 64, f"{given}: 2 + 2 layers learn the most from little text or time"
    vocabulary = vocabulary_size(text.survey)
    # Segments are cut regardless of documents, and spans of them become the targets.
    num_examples = max(1.0, text.num_train_bytes / BYTES_PER_TOKEN / length)
    return Proposal(
        preset=preset,
        facts=text.facts,
        left_out=text.left_out,
        decisions=(
            *text.decisions,
            vocabulary,
            Decision("sentence boundaries", "none", "span corruption does not use them", is_setting=False),
            Decision("preset", preset, why, is_setting=False),
            Decision("data.input_length", length, "as in the preset; the maximum length, in tokens"),
            *training_decisions(request, TOKENS, 32, num_examples),
        ),
        stages=(
            *text.stages,
            *token_stages(
                vocabulary.value, layout=("--layout", "t5"), has_sentences=False, splitter=("--splitter", "none")
            ),
        ),
        export_format="huggingface",
    )
