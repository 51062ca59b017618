"""Metrics of targets and predictions: functions `(targets, predictions) -> dict[str, float]`, in percent. Imports no
torch.

The keys are those of the t5 library. Classes are whole numbers from 0; any other number, such as -1, means that an
answer names no class. Metrics of classes agree with scikit-learn up to rounding. Correlations agree with SciPy, which
returns NaN where they return 0. BLEU and ROUGE need the packages of the extra [text-metrics].

Examples may belong together (answers to one question, or copies of one question). Then targets are mappings with a
`value`, the target of the single example, and a `group`, which is equal for all of them; predictions are mappings with
a `value`.

Sources of the metrics of answers: Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250; Rajpurkar et al. 2018,
https://arxiv.org/abs/1806.03822; Joshi et al. 2017, https://arxiv.org/abs/1705.03551.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError, import_optional

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_WORD = re.compile(r"\W")
_TRIVIA_PUNCTUATION = string.punctuation + "‘’´`_"
NO_ANSWER = -1
"""Class of an empty answer, which equals no class and is therefore never right."""
_DETERMINER = re.compile(
    "a|an|few|her|his|each|every|many|much|my|our|some|that|the|their|these|this|those|which|whose|your"
)

Grouped = Mapping[str, Any]
_LABEL = re.compile(r"O|[BIES]-.+")
OUTSIDE = "O"
"""Label of a word that is not part of an entity."""
Entity = tuple[str, int, int]
"""Kind of an entity, its first word, and the word after its last one."""
Texts = Sequence[str] | Sequence[Sequence[str]]
"""One text per example, or all right texts for each."""
_ROUGE_KINDS = ("rouge1", "rouge2", "rougeLsum")


def check_pairs(targets: Sequence[Any], predictions: Sequence[Any]) -> None:
    """Raise DataError if there is nothing to score, or not exactly one prediction for each target."""
    if len(targets) != len(predictions):
        raise DataError(
            f"there are {len(targets)} targets and {len(predictions)} predictions\n  pass one prediction per target"
        )
    if not len(targets):
        raise DataError("there is nothing to score: no target and no prediction\n  check the split and num_examples")


def accuracy(targets: Sequence[Hashable], predictions: Sequence[Hashable]) -> dict[str, float]:
    """Return `accuracy`: the share of predictions that equal their target. For classes or texts."""
    check_pairs(targets, predictions)
    return {"accuracy": 100 * sum(t == p for t, p in zip(targets, predictions, strict=True)) / len(targets)}


def f1_invalid_wrong(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """Return `f1` of class 1 against class 0. Any other prediction counts as the wrong class.

    The F1 is 0 if no target and no prediction is class 1.
    """
    check_pairs(targets, predictions)
    target_N, prediction_N = np.asarray(targets), np.asarray(predictions)
    is_valid_N = (prediction_N == 0) | (prediction_N == 1)
    return {"f1": 100 * _f1_of_class(target_N, np.where(is_valid_N, prediction_N, 1 - target_N), 1)}


def mean_multiclass_f1(num_classes: int) -> Callable[[Sequence[int], Sequence[int]], dict[str, float]]:
    """Return the metric `mean_{num_classes}class_f1`: F1 of each class against all others, averaged over the classes.

    A class without targets and predictions has an F1 of 0.
    """
    return partial(_mean_f1, num_classes=num_classes)


def matthews(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """Return `matthews_corrcoef`, the correlation of any number of classes; 0 if one side has only one class.

    Source: Gorodkin 2004, https://doi.org/10.1016/j.compbiolchem.2004.09.006.
    """
    check_pairs(targets, predictions)
    _, codes = np.unique(np.concatenate([targets, predictions]), return_inverse=True)
    target_N, prediction_N = codes[: len(targets)], codes[len(targets) :]
    num_classes, num = int(codes.max()) + 1, len(targets)
    predicted_C = np.bincount(prediction_N, minlength=num_classes).astype(float)
    true_C = np.bincount(target_N, minlength=num_classes).astype(float)
    covariance = float((target_N == prediction_N).sum()) * num - float(predicted_C @ true_C)
    spread = (num**2 - float(predicted_C @ predicted_C)) * (num**2 - float(true_C @ true_C))
    return {"matthews_corrcoef": 100 * covariance / spread**0.5 if spread else 0.0}


def pearson(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Return `pearson_corrcoef`; 0 if all targets, or all predictions, are equal."""
    check_pairs(targets, predictions)
    return {"pearson_corrcoef": 100 * _correlation(np.asarray(targets, float), np.asarray(predictions, float))}


def spearman(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Return `spearman_corrcoef`, Pearson's correlation of the ranks; equal values share the mean of their ranks."""
    check_pairs(targets, predictions)
    return {"spearman_corrcoef": 100 * _correlation(_ranks(np.asarray(targets)), _ranks(np.asarray(predictions)))}


def _mean_f1(targets: Sequence[int], predictions: Sequence[int], *, num_classes: int) -> dict[str, float]:
    check_pairs(targets, predictions)
    target_N, prediction_N = np.asarray(targets), np.asarray(predictions)
    scores = [_f1_of_class(target_N, prediction_N, label) for label in range(num_classes)]
    return {f"mean_{num_classes}class_f1": 100 * sum(scores) / num_classes}


def _f1_of_class(target_N: NDArray, prediction_N: NDArray, label: int) -> float:
    is_target_N, is_predicted_N = target_N == label, prediction_N == label
    both, either = int((is_target_N & is_predicted_N).sum()), int(is_target_N.sum() + is_predicted_N.sum())
    return 2 * both / either if either else 0.0


def _correlation(a_N: NDArray, b_N: NDArray) -> float:
    if (a_N == a_N[0]).all() or (b_N == b_N[0]).all():
        return 0.0
    a_N, b_N = a_N - a_N.mean(), b_N - b_N.mean()
    # Divide each by its length first: products of very small or large values could leave the range of a float.
    return float((a_N / np.linalg.norm(a_N)) @ (b_N / np.linalg.norm(b_N)))


def _ranks(values_N: NDArray) -> NDArray[np.float64]:
    _, place_N, count = np.unique(values_N, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[place_N]


def normalize_squad(answer: str) -> str:
    """Convert to lower case, without punctuation and articles, with single spaces."""
    return _without_articles(answer.lower().translate(str.maketrans("", "", string.punctuation)))


def normalize_trivia_qa(answer: str) -> str:
    """Normalize like `normalize_squad`, but replace punctuation, including curly and accent quotes, by spaces."""
    return _without_articles(
        answer.lower().translate(str.maketrans(_TRIVIA_PUNCTUATION, " " * len(_TRIVIA_PUNCTUATION)))
    )


def squad(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Return `em`, the share of predictions that equal one of the answers, and `f1`, the mean word overlap with the
    best answer.

    Targets are all right answers to each question; a single text counts as one answer.
    """
    return _best_of(targets, predictions, normalize_squad)


def squad_v2(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Return `em` and `f1` of SQuAD 2.0. A question may have no answer; then only an empty text is right.

    Targets are all right answers to each question; empty if there is no answer.
    """
    check_pairs(targets, predictions)
    scores = [v2_scores(answers, prediction) for answers, prediction in zip(targets, predictions, strict=True)]
    return {
        "em": 100 * sum(equal for equal, _ in scores) / len(scores),
        "f1": 100 * sum(f1 for _, f1 in scores) / len(scores),
    }


def best_null_threshold(
    targets: Sequence[Sequence[str]], predictions: Sequence[str], null_odds: Sequence[float]
) -> tuple[float, float]:
    """Find the threshold with the highest F1 of SQuAD 2.0 on these questions.

    Args:
        targets: As for `squad_v2`.
        predictions: The best answer to each question.
        null_odds: Score of "no answer" minus that of the best answer, for each question.

    Returns:
        (threshold, f1 in percent). Questions with odds above the threshold get no answer. Of equal ones the lowest is
        returned.
    """
    check_pairs(targets, predictions)
    order = sorted(range(len(targets)), key=null_odds.__getitem__)
    total = float(sum(not _nonempty(answers) for answers in targets))
    best, threshold = total, float(min(null_odds)) - 1.0
    for place, number in enumerate(order):
        total += v2_scores(targets[number], predictions[number])[1] - (not _nonempty(targets[number]))
        is_last_of_its_odds = place + 1 == len(order) or null_odds[order[place + 1]] > null_odds[number]
        if total > best and is_last_of_its_odds:
            best, threshold = total, float(null_odds[number])
    return threshold, 100 * best / len(targets)


def v2_scores(answers: Sequence[str], prediction: str) -> tuple[bool, float]:
    """Return (True if equal to one of the answers, highest F1 with one of them), by the rules of SQuAD 2.0."""
    normalised = normalize_squad(prediction)
    right = _nonempty(answers) or [""]
    return normalised in right, max(
        _word_f1(answer, normalised) if answer and normalised else float(answer == normalised) for answer in right
    )


def _nonempty(answers: Sequence[str]) -> list[str]:
    """Normalize the answers and drop empty ones."""
    return [text for answer in answers if (text := normalize_squad(answer))]


def trivia_qa(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Return the metrics of `squad` with the text normalization of TriviaQA."""
    return _best_of(targets, predictions, normalize_trivia_qa)


def span_squad(targets: Sequence[Mapping[str, Any]], predictions: Sequence[str]) -> dict[str, float]:
    """Return the metrics of `squad` for answers that are positions in the text: "start: 3 end: 5".

    Args:
        targets: `answers` and `context`. Words are separated by characters that are not letters or digits. The first
            word has number 0, and the word at `end` belongs to the answer.
        predictions: Positions; anything else counts as an empty answer.
    """
    check_pairs(targets, predictions)
    predictions_as_text = [
        span_text(target["context"], text) for target, text in zip(targets, predictions, strict=True)
    ]
    return squad([target["answers"] for target in targets], predictions_as_text)


def span_text(context: str, span: str) -> str:
    """Return the words of `context` at "start: 3 end: 5", or an empty text if this is not a position in it."""
    words = _NO_WORD.sub(" ", span).split()
    if len(words) < 4 or not (words[1].isdecimal() and words[3].isdecimal()):
        return ""
    return " ".join(_NO_WORD.sub(" ", context).split()[int(words[1]) : int(words[3]) + 1])


def multirc_f1_and_exact_match(targets: Sequence[Grouped], predictions: Sequence[Grouped]) -> dict[str, float]:
    """Return `f1` over all answers of all questions (see `f1_invalid_wrong`), and `exact_match`, the share of questions
    whose answers are all classified correctly, in percent.

    Source: Khashabi et al. 2018, https://aclanthology.org/N18-1023.
    """
    check_pairs(targets, predictions)
    is_right: dict[Hashable, bool] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        group = target["group"]
        is_right[group] = is_right.get(group, True) and target["value"] == prediction["value"]
    scores = f1_invalid_wrong([pair["value"] for pair in targets], [pair["value"] for pair in predictions])
    return scores | {"exact_match": 100 * sum(is_right.values()) / len(is_right)}


def deduplicated_squad(targets: Sequence[Grouped], predictions: Sequence[Grouped]) -> dict[str, float]:
    """Return `squad` of the first example of each group. For ReCoRD, where every right answer is a separate example."""
    check_pairs(targets, predictions)
    first: dict[Hashable, tuple[Any, Any]] = {}
    for target, prediction in zip(targets, predictions, strict=True):
        first.setdefault(target["group"], (target["value"], prediction["value"]))
    answers, first_predictions = zip(*first.values(), strict=True)
    return squad(answers, first_predictions)


def wsc_accuracy(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """Return `accuracy` of the classes of `same_referent`. A target is 1 if the noun in the data is the right one, so
    an answer must differ from a wrong noun."""
    return accuracy(targets, predictions)


def same_referent(answer: str, noun: str) -> int:
    """Return 1 if an answer means `noun`, 0 if it means something else, and `NO_ANSWER` if it is empty.

    Case and determiners are ignored. All words of one must be words of the other, so "bunny" means "the fuzzy bunny".
    But both or none must have an apostrophe ("Mark's" is not "Mark").

    Source: Raffel et al. 2020, section 2.4, https://arxiv.org/abs/1910.10683.
    """
    answer_words, noun_words = _words(answer), _words(noun)
    if not answer_words:
        return NO_ANSWER
    has_apostrophe = [any("'" in word for word in words) for words in (answer_words, noun_words)]
    if not noun_words or has_apostrophe[0] != has_apostrophe[1]:
        return 0
    return int(answer_words <= noun_words or noun_words <= answer_words)


def _best_of(
    targets: Sequence[Sequence[str]], predictions: Sequence[str], normalize: Callable[[str], str]
) -> dict[str, float]:
    check_pairs(targets, predictions)
    num_equal, shared = 0, 0.0
    for answers, prediction in zip(targets, predictions, strict=True):
        normalised = normalize(prediction)
        right = [normalize(answer) for answer in ([answers] if isinstance(answers, str) else answers)]
        num_equal += normalised in right
        shared += max((_word_f1(answer, normalised) for answer in right), default=0.0)
    return {"em": 100 * num_equal / len(targets), "f1": 100 * shared / len(targets)}


def _word_f1(answer: str, prediction: str) -> float:
    answer_words, prediction_words = Counter(answer.split()), Counter(prediction.split())
    num_shared = (answer_words & prediction_words).total()
    return 2 * num_shared / (answer_words.total() + prediction_words.total()) if num_shared else 0.0


def _without_articles(text: str) -> str:
    return " ".join(_ARTICLE.sub(" ", text).split())


def _words(text: str) -> set[str]:
    return {word for word in text.lower().split() if not _DETERMINER.fullmatch(word)}


def are_entity_labels(names: Sequence[str]) -> bool:
    """True if the labels are O and labels of entities (B-, I-, E-, S-)."""
    return OUTSIDE in names and len(names) > 1 and all(_LABEL.fullmatch(name) for name in names)


def entities(labels: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence, in order, from the labels of its words: O, or B-, I-, E- or S- with a kind.
    Any other label counts as O.

    Labels are read leniently, as by conlleval and seqeval: an I- after O, or after another kind, also begins an entity.

    Source: Tjong Kim Sang and Buchholz 2000, https://aclanthology.org/W00-0726.
    """
    entities_of_sentence: list[Entity] = []
    begun: tuple[str, int] | None = None
    place_before = ""
    for number, label in enumerate(labels):
        place, _, kind = label.partition("-") if _LABEL.fullmatch(label) else (OUTSIDE, "", "")
        is_continued = begun is not None and place in "IE" and place_before in "BI" and kind == begun[0]
        if begun is not None and not is_continued:
            entities_of_sentence.append((*begun, number))
            begun = None
        if place != OUTSIDE and begun is None:
            begun = (kind, number)
        place_before = place
    return entities_of_sentence if begun is None else [*entities_of_sentence, (*begun, len(labels))]


def entity_f1(targets: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return `precision`, `recall` and `f1` of entities over all sentences, from the labels of their words. An entity
    is right if its kind and place are."""
    check_pairs(targets, predictions)
    num_true = num_predicted = num_right = 0
    for labels, predicted_labels in zip(targets, predictions, strict=True):
        if labels or predicted_labels:
            check_pairs(labels, predicted_labels)
        true_set, predicted_set = set(entities(labels)), set(entities(predicted_labels))
        num_true, num_predicted = num_true + len(true_set), num_predicted + len(predicted_set)
        num_right += len(true_set & predicted_set)
    return {
        "precision": 100 * num_right / num_predicted if num_predicted else 0.0,
        "recall": 100 * num_right / num_true if num_true else 0.0,
        "f1": 200 * num_right / (num_predicted + num_true) if num_right else 0.0,
    }


def exact_match(targets: Texts, predictions: Sequence[str]) -> dict[str, float]:
    """Return `exact_match`: the share of predictions that equal the target, or one of several targets, except for white
    space at the ends."""
    check_pairs(targets, predictions)
    num_equal = 0
    for target, prediction in zip(targets, predictions, strict=True):
        right = [target] if isinstance(target, str) else target
        num_equal += prediction.strip() in {text.strip() for text in right}
    return {"exact_match": 100 * num_equal / len(targets)}


def bleu(targets: Texts, predictions: Sequence[str]) -> dict[str, float]:
    """Return `bleu` of the corpus by sacreBLEU, with its international tokenizer, exponential smoothing and case.

    Examples may have different numbers of right texts; sacreBLEU ignores missing ones. Raises MissingPackageError if
    sacreBLEU is not installed.

    Source: Post 2018, https://arxiv.org/abs/1804.08771.
    """
    check_pairs(targets, predictions)
    sacrebleu = import_optional("sacrebleu", "text-metrics", "the metric BLEU")
    right = [[target] if isinstance(target, str) else list(target) for target in targets]
    most = max(map(len, right))
    references: list[Any] = [[texts[k] if k < len(texts) else None for texts in right] for k in range(most)]
    scorer = sacrebleu.BLEU(tokenize="intl", smooth_method="exp")
    return {"bleu": float(scorer.corpus_score(list(predictions), references).score)}


def rouge(targets: Texts, predictions: Sequence[str]) -> dict[str, float]:
    """Return `rouge1`, `rouge2` and `rougeLsum`: F-measures, each averaged over the examples (without a bootstrap).

    rougeLsum matches sentences separately; they end with " . " or a new line. Of several right texts the one with the
    best F-measure counts. Words are not stemmed. Raises MissingPackageError if rouge-score is not installed.

    Source: Lin 2004, https://aclanthology.org/W04-1013.
    """
    check_pairs(targets, predictions)
    rouge = import_optional("rouge_score.rouge_scorer", "text-metrics", "the metric ROUGE", package="rouge-score")
    scorer = rouge.RougeScorer(_ROUGE_KINDS)
    totals = dict.fromkeys(_ROUGE_KINDS, 0.0)
    for target, prediction in zip(targets, predictions, strict=True):
        right = [target] if isinstance(target, str) else target
        scores = scorer.score_multi([_split_lines(text) for text in right], _split_lines(prediction))
        for kind in _ROUGE_KINDS:
            totals[kind] += scores[kind].fmeasure
    return {kind: 100 * total / len(targets) for kind, total in totals.items()}


def _split_lines(text: str) -> str:
    return text.replace(" . ", " .\n")
