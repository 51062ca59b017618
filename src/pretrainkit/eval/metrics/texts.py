"""Metrics of whole texts, in percent. BLEU and ROUGE need the packages of the extra [text-metrics]."""

from collections.abc import Sequence
from typing import Any

from pretrainkit.errors import MissingPackageError
from pretrainkit.eval.metrics.classes import check_pairs

Texts = Sequence[str] | Sequence[Sequence[str]]
"""One text per example, or for each all texts that are right."""
_ROUGE_KINDS = ("rouge1", "rouge2", "rougeLsum")


def exact_match(targets: Texts, predictions: Sequence[str]) -> dict[str, float]:
    """`exact_match`: equal, but for white space at the ends, to the target or to one of several."""
    check_pairs(targets, predictions)
    num_equal = 0
    for target, prediction in zip(targets, predictions, strict=True):
        right = [target] if isinstance(target, str) else target
        num_equal += prediction.strip() in {text.strip() for text in right}
    return {"exact_match": 100 * num_equal / len(targets)}


def bleu(targets: Texts, predictions: Sequence[str]) -> dict[str, float]:
    """`bleu` of the corpus by sacreBLEU: its international tokenizer, exponential smoothing, case kept.

    Where examples have unequally many right texts, sacreBLEU leaves the missing ones out.

    Raises:
        MissingPackageError: sacreBLEU is not installed.

    Source: Post 2018, https://arxiv.org/abs/1804.08771.
    """
    check_pairs(targets, predictions)
    try:
        import sacrebleu
    except ImportError as error:
        raise MissingPackageError("sacrebleu", "text-metrics", "the metric BLEU") from error
    right = [[target] if isinstance(target, str) else list(target) for target in targets]
    most = max(map(len, right))
    references: list[Any] = [[texts[k] if k < len(texts) else None for texts in right] for k in range(most)]
    judge = sacrebleu.BLEU(tokenize="intl", smooth_method="exp")
    return {"bleu": float(judge.corpus_score(list(predictions), references).score)}


def rouge(targets: Texts, predictions: Sequence[str]) -> dict[str, float]:
    """`rouge1`, `rouge2` and `rougeLsum`: F-measures, each averaged over the examples (without any bootstrap).

    Sentences, which the last one matches separately, end in " . " or a new line. Of several right texts the one with
    the best F-measure counts. Words are not stemmed.

    Raises:
        MissingPackageError: rouge-score is not installed.

    Source: Lin 2004, https://aclanthology.org/W04-1013.
    """
    check_pairs(targets, predictions)
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise MissingPackageError("rouge-score", "text-metrics", "the metric ROUGE") from error
    judge = RougeScorer(_ROUGE_KINDS)
    totals = dict.fromkeys(_ROUGE_KINDS, 0.0)
    for target, prediction in zip(targets, predictions, strict=True):
        right = [target] if isinstance(target, str) else target
        found = judge.score_multi([_in_lines(text) for text in right], _in_lines(prediction))
        for kind in _ROUGE_KINDS:
            totals[kind] += found[kind].fmeasure
    return {kind: 100 * total / len(targets) for kind, total in totals.items()}


def _in_lines(text: str) -> str:
    return text.replace(" . ", " .\n")
