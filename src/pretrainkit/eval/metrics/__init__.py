"""Metrics of targets and predictions: functions `(targets, predictions) -> dict[str, float]` in percent. Torch-free."""

from pretrainkit.eval.metrics.answers import (
    best_null_threshold,
    deduplicated_squad,
    multirc_f1_and_exact_match,
    normalize_squad,
    normalize_trivia_qa,
    same_referent,
    span_squad,
    squad,
    squad_v2,
    trivia_qa,
    wsc_accuracy,
)
from pretrainkit.eval.metrics.classes import accuracy, f1_invalid_wrong, matthews, mean_multiclass_f1, pearson, spearman
from pretrainkit.eval.metrics.entities import are_entity_labels, entities, entity_f1
from pretrainkit.eval.metrics.texts import bleu, exact_match, rouge

__all__ = [
    "accuracy",
    "are_entity_labels",
    "best_null_threshold",
    "bleu",
    "deduplicated_squad",
    "entities",
    "entity_f1",
    "exact_match",
    "f1_invalid_wrong",
    "matthews",
    "mean_multiclass_f1",
    "multirc_f1_and_exact_match",
    "normalize_squad",
    "normalize_trivia_qa",
    "pearson",
    "rouge",
    "same_referent",
    "span_squad",
    "spearman",
    "squad",
    "squad_v2",
    "trivia_qa",
    "wsc_accuracy",
]
