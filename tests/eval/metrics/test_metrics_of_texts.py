"""Answers, translations and summaries: hand-worked numbers, and the packages that others use."""

import inspect
import subprocess
import sys

import pytest

from pretrainkit.errors import DataError, MissingPackageError
from pretrainkit.eval import metrics
from pretrainkit.tasks.task import metric_kind


def test_squad_forgives_articles_case_and_punctuation():
    assert metrics.squad([["the Cat!", "a dog"]], ["cat"]) == {"em": 100.0, "f1": 100.0}


def test_squad_takes_the_best_answer_of_each_question_and_averages():
    found = metrics.squad([["big red cat", "zebra"], ["Paris"]], ["the cat is red", "London"])
    # cat, is, red against big, red, cat: 2 shared of 3 and 3.
    assert found == {"em": 0.0, "f1": pytest.approx(100 * (2 / 3 + 0) / 2)}


def test_a_repeated_word_counts_as_often_as_both_sides_have_it():
    assert metrics.squad([["ha ha ho"]], ["ha ha ha"])["f1"] == pytest.approx(100 * 2 / 3)


def test_trivia_qa_makes_spaces_of_punctuation():
    assert metrics.trivia_qa([["twenty-one"]], ["twenty one"])["em"] == 100.0
    assert metrics.squad([["twenty-one"]], ["twenty one"])["em"] == 0.0


@pytest.mark.parametrize(
    ("said", "em"),
    [("start: 3 end: 4", 100.0), ("start: 3 end: 3", 0.0), ("start: x end: 4", 0.0), ("three", 0.0), ("", 0.0)],
)
def test_a_span_is_the_words_between_its_places_and_nonsense_is_empty(said, em):
    target = {"context": "It was won by Ada Lovelace.", "answers": ["by Ada"]}
    assert metrics.span_squad([target], [said])["em"] == em


def test_multirc_counts_a_question_only_if_all_its_answers_are_judged_rightly():
    targets = [{"group": g, "value": v} for g, v in (("q1", 1), ("q1", 0), ("q2", 1), ("q2", 1))]
    predictions = [{"value": v} for v in (1, 0, 1, 0)]
    found = metrics.multirc_f1_and_exact_match(targets, predictions)
    assert found == {"f1": pytest.approx(80.0), "exact_match": 50.0}


def test_record_counts_each_query_once():
    targets = [{"group": g, "value": v} for g, v in (("p-0", ["Ada", "Lovelace"]), ("p-0", ["Ada"]), ("p-1", ["x"]))]
    predictions = [{"value": v} for v in ("Lovelace", "Lovelace", "y")]
    assert metrics.deduplicated_squad(targets, predictions) == {"em": 50.0, "f1": 50.0}


@pytest.mark.parametrize(
    ("answer", "noun", "wanted"),
    [
        ("bunny", "the fuzzy bunny", 1),
        ("The fuzzy bunny", "bunny", 1),
        ("fuzzy dog", "fuzzy bunny", 0),
        ("Mark's", "Mark", 0),
        ("Mark's dog", "dog", 0),
        ("the", "bunny", -1),
        ("", "bunny", -1),
        ("bunny", "that", 0),
    ],
)
def test_a_referent_is_the_same_where_the_words_of_one_are_words_of_the_other(answer, noun, wanted):
    assert metrics.same_referent(answer, noun) == wanted


def test_an_empty_answer_is_wrong_whatever_the_label():
    assert metrics.wsc_accuracy([1, 0, 0], [metrics.same_referent("", "x")] * 3) == {"accuracy": 0.0}


def test_exact_match_takes_one_of_several_texts():
    assert metrics.exact_match(["a", ["b", "c"], "d"], ["a ", "c", "e"])["exact_match"] == pytest.approx(200 / 3)


def test_bleu_is_that_of_sacrebleu_with_one_or_several_references():
    sacrebleu = pytest.importorskip("sacrebleu")
    said = ["The cat sat on the mat.", "It rains today, again."]
    one = ["The cat sat on a mat.", "It is raining today."]
    wanted = sacrebleu.corpus_bleu(said, [one], tokenize="intl", smooth_method="exp").score
    assert metrics.bleu(one, said)["bleu"] == pytest.approx(wanted, abs=1e-9)
    two = [[one[0], "A cat sat on the mat."], [one[1], "Today it rains, again."]]
    wanted = sacrebleu.corpus_bleu(said, list(map(list, zip(*two))), tokenize="intl", smooth_method="exp").score
    assert metrics.bleu(two, said)["bleu"] == pytest.approx(wanted, abs=1e-9)
    assert metrics.bleu(said, said)["bleu"] == pytest.approx(100.0)
    assert metrics.bleu([[one[0]], two[1]], said)["bleu"] > 0


def test_rouge_is_the_plain_mean_of_hand_worked_f_measures():
    pytest.importorskip("rouge_score")
    found = metrics.rouge(["the cat sat . it slept", "a b"], ["the cat slept", "c d"])
    # First pair: words the, cat, slept of 3 and 5; pairs "the cat" of 2 and 4; second pair: nothing.
    assert found["rouge1"] == pytest.approx(100 * (2 * 3 / 8) / 2)
    assert found["rouge2"] == pytest.approx(100 * (2 * 1 / 6) / 2)
    assert metrics.rouge(["a b . c"], ["a b . c"]) == dict.fromkeys(("rouge1", "rouge2", "rougeLsum"), 100.0)


def test_rouge_lsum_looks_at_each_sentence_alone():
    pytest.importorskip("rouge_score")
    found = metrics.rouge(["a b . c d"], ["c d . a b"])
    assert found["rougeLsum"] == pytest.approx(100.0)  # the order of sentences does not matter to it


@pytest.mark.parametrize(("name", "package"), [("bleu", "sacrebleu"), ("rouge", "rouge_score.rouge_scorer")])
def test_a_missing_package_is_an_install_line(monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=r"pretrainkit\[text-metrics\]"):
        getattr(metrics, name)(["a"], ["a"])


FUNCTIONS = [
    *(
        one
        for name, one in vars(metrics).items()
        if inspect.isfunction(one) and not name.startswith("_") and name != "check_pairs"
        if [*inspect.signature(one).parameters] == ["targets", "predictions"]
    ),
    metrics.mean_multiclass_f1(3),
]


@pytest.mark.parametrize("metric", FUNCTIONS)
@pytest.mark.parametrize(
    ("targets", "message"), [([], "nothing to score"), (["a", "b"], "2 targets and 0 predictions")]
)
def test_every_metric_requires_as_many_answers_as_questions_and_at_least_one(metric, targets, message):
    with pytest.raises(DataError, match=message):
        metric(targets, [])


def test_all_metrics_have_the_form_that_tasks_require_and_load_no_torch():
    assert len(FUNCTIONS) == 17
    assert {metric_kind(metric) for metric in FUNCTIONS} == {"predictions"}
    heavy = "{'torch', 'sacrebleu', 'nltk', 'scipy'}"
    code = f"import sys, pretrainkit.eval.metrics; print(sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
