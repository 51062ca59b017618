"""Texts of the named tasks, row by row (facts 27 and 32), and postprocessed answers."""

import numpy as np
import pytest

import pretrainkit.recipes.t5.catalogue  # noqa: F401  (makes the tasks known)
from pretrainkit.errors import DataError
from pretrainkit.recipes.t5.catalogue import with_sentinels
from pretrainkit.recipes.t5.catalogue.questions import spaced, window_with_answer
from pretrainkit.recipes.t5.catalogue.texts import Translate
from pretrainkit.tasks.steps import CacheMarker, Steps
from pretrainkit.tasks.task import REGISTRY


def texts(name, row):
    """(inputs, targets) of every example that a task makes of a row, before they are tokenized."""
    return [(one["inputs"], one["targets"]) for one in rows(name, row)]


def rows(name, row):
    task = REGISTRY.get_task(name)
    steps = task.preprocessors[: next(n for n, step in enumerate(task.preprocessors) if isinstance(step, CacheMarker))]
    made = Steps(name, steps[:-1], first=0, seed=0, lengths=None, features=task.features)
    return made.apply(row, 0, 0)


PAIR = {"sentence1": "A b.", "sentence2": "C d?"}
NLI = {"premise": "It rains.", "hypothesis": "It is wet."}


@pytest.mark.parametrize(
    ("name", "row", "inputs", "targets"),
    [
        ("glue_cola_v002", {"sentence": "S", "label": 0}, "cola sentence: S", "unacceptable"),
        ("glue_cola_v002", {"sentence": "S", "label": "1"}, "cola sentence: S", "acceptable"),
        ("glue_sst2_v002", {"sentence": "good . ", "label": 1}, "sst2 sentence: good . ", "positive"),
        ("glue_mrpc_v002", {**PAIR, "label": 1}, "mrpc sentence1: A b. sentence2: C d?", "equivalent"),
        (
            "glue_mrpc_v002",
            {"Quality": "0", "#1 ID": "1", "#1 String": "A", "#2 String": "B"},
            "mrpc sentence1: A sentence2: B",
            "not_equivalent",
        ),
        (
            "glue_qqp_v002",
            {"id": "7", "question2": "B?", "question1": "A?", "is_duplicate": "1"},
            "qqp question1: A? question2: B?",
            "duplicate",
        ),
        ("glue_stsb_v002", {**PAIR, "label": 3.25}, "stsb sentence1: A b. sentence2: C d?", "3.2"),
        ("glue_stsb_v002", {**PAIR, "score": "2.5"}, "stsb sentence1: A b. sentence2: C d?", "2.4"),
        ("glue_stsb_v002", {**PAIR, "label": 4.9}, "stsb sentence1: A b. sentence2: C d?", "4.8"),
        ("glue_stsb_v002", {**PAIR, "label": 0}, "stsb sentence1: A b. sentence2: C d?", "0.0"),
        ("glue_mnli_v002", {**NLI, "label": 1}, "mnli hypothesis: It is wet. premise: It rains.", "neutral"),
        (
            "glue_mnli_matched_v002",
            {**PAIR, "gold_label": "contradiction"},
            "mnli hypothesis: C d? premise: A b.",
            "contradiction",
        ),
        ("glue_ax_v002", {**NLI, "label": -1}, "mnli hypothesis: It is wet. premise: It rains.", "<unk>"),
        (
            "glue_qnli_v002",
            {"question": "Q?", "sentence": "S", "label": "not_entailment"},
            "qnli question: Q? sentence: S",
            "not_entailment",
        ),
        ("glue_rte_v002", {**PAIR, "label": 0}, "rte sentence1: A b. sentence2: C d?", "entailment"),
        ("glue_wnli_v002", {**PAIR, "label": 1}, "wnli sentence1: A b. sentence2: C d?", "entailment"),
        (
            "super_glue_boolq_v102",
            {"passage": "P", "question": "q", "label": True},
            "boolq passage: P question: q",
            "True",
        ),
        ("super_glue_cb_v102", {**NLI, "label": 1}, "cb hypothesis: It is wet. premise: It rains.", "contradiction"),
        (
            "super_glue_copa_v102",
            {
                "premise": "P",
                "choice1": "A",
                "choice2": "B",
                "question": "cause",
                "label": 1,
                "idx": 3,
                "changed": False,
            },
            "copa choice1: A choice2: B premise: P question: cause",
            "choice2",
        ),
        (
            "super_glue_rte_v102",
            {**NLI, "label": "entailment"},
            "rte hypothesis: It is wet. premise: It rains.",
            "entailment",
        ),
        (
            "super_glue_wic_v102",
            {**PAIR, "word": "b", "start1": 2, "label": False},
            "wic sentence1: A b. sentence2: C d? word: b",
            "False",
        ),
        ("super_glue_axb_v102", {**PAIR, "label": 1}, "rte hypothesis: C d? premise: A b.", "not_entailment"),
        ("super_glue_axg_v102", {**NLI}, "rte hypothesis: It is wet. premise: It rains.", "<unk>"),
        (
            "dpr_v001_simple",
            {
                "sentence": "Bob asked Tom if he can lend some money, as he should.",
                "pronoun": "he",
                "candidates": ["Bob", "Tom"],
                "label": 1,
            },
            "wsc: Bob asked Tom if *he* can lend some money, as he should.",
            "Tom",
        ),
        (
            "glue_wnli_v002_simple_eval",
            {"sentence1": "The fish ate the worm. It was tasty.", "sentence2": "The worm was tasty.", "label": 1},
            "wsc: The fish ate the worm. *It* was tasty.",
            "The worm",
        ),
        ("wmt_t2t_ende_v003", {"de": "Gut.", "en": "Good."}, "translate English to German: Good.", "Gut."),
        ("wmt15_enfr_v003", {"translation": {"en": "A", "fr": "B"}}, "translate English to French: A", "B"),
        ("wmt16_enro_v003", {"en": "A", "ro": "B"}, "translate English to Romanian: A", "B"),
        ("cnn_dailymail_v002", {"article": "Long.", "highlights": "Short ."}, "summarize: Long.", "Short ."),
        (
            "squad_v010_allanswers",
            {"id": "x", "question": "What?", "context": "It's A.", "answers": {"text": ["A.", "A"]}},
            "question: What ? context: It ' s A . ",
            "A . ",
        ),
        (
            "squad_v010_context_free",
            {"id": "x", "question": "What?", "context": "C", "answers": {"text": ["A"]}},
            "squad trivia question: What ? ",
            "A",
        ),
        (
            "squad_v010_allanswers_span",
            {
                "id": "a",
                "context": "context, with the answer.",
                "question": "Say what?",
                "answers": {"text": ["the answer", "answer"]},
            },
            "question: Say what ? context: context , with the answer . ",
            "start: 2 end: 3",
        ),
    ],
)
def test_a_row_becomes_this_text(name, row, inputs, targets):
    assert texts(name, row) == [(inputs, targets)]


@pytest.mark.parametrize("shape", ["as distributed", "as on the hub"])
def test_multirc_has_an_example_per_answer_without_markup(shape):
    paragraph = "<b>Sent 1: </b>Rain.<br><b>Sent 2: </b>Sun."
    nested = {
        "idx": 4,
        "passage": {
            "text": paragraph,
            "questions": [
                {
                    "question": "Wet?",
                    "idx": 9,
                    "answers": [{"text": "Yes", "idx": 1, "label": 1}, {"text": "No", "idx": 2, "label": 0}],
                }
            ],
        },
    }
    flat = [
        {"paragraph": paragraph, "question": "Wet?", "answer": text, "label": label, "idx": numbers}
        for text, label, numbers in (
            ("Yes", 1, {"paragraph": 4, "question": 9, "answer": 1}),
            ("No", 0, {"paragraph": 4, "question": 9, "answer": 2}),
        )
    ]
    name = "super_glue_multirc_v102"
    made = rows(name, nested) if shape == "as distributed" else [one for row in flat for one in rows(name, row)]
    assert [(one["inputs"], one["targets"]) for one in made] == [
        ("multirc question: Wet? answer: Yes paragraph: Sent 1: Rain. Sent 2: Sun.", "True"),
        ("multirc question: Wet? answer: No paragraph: Sent 1: Rain. Sent 2: Sun.", "False"),
    ]
    judge = REGISTRY.get_task(name).postprocess
    assert judge("False", example=made[0], is_target=True) == {"value": 0, "group": (4, 9)}
    assert judge("Truer", example=made[0]) == {"value": -1}


def test_record_has_an_example_per_right_answer_and_lists_all_of_them():
    text = "Ann met Bob.\n@highlight\nBob left\n@highlight\nAnn stayed"
    nested = {
        "idx": 1,
        "passage": {
            "text": text,
            "entities": [{"start": 8, "end": 10}, {"start": 0, "end": 2}, {"start": 0, "end": 2}],
        },
        "qas": [
            {"query": "@placeholder left", "idx": 5, "answers": [{"text": "Bob"}, {"text": "Ann"}, {"text": "Bob"}]},
            {"query": "Who?", "idx": 6},
        ],
    }
    made = rows("super_glue_record_v102", nested)
    passage = "passage: Ann met Bob. Bob left. Ann stayed"
    assert [(one["inputs"], one["targets"]) for one in made] == [
        (f"record query: @placeholder left entities: Ann, Bob {passage}", "Ann"),
        (f"record query: @placeholder left entities: Ann, Bob {passage}", "Bob"),
        (f"record query: Who? entities: Ann, Bob {passage}", "<unk>"),
    ]
    flat = {
        "passage": text,
        "query": "@placeholder left",
        "entities": ["Ann", "Bob"],
        "answers": ["Ann", "Bob"],
        "idx": {"passage": 1, "query": 5},
    }
    assert rows("super_glue_record_v102", flat) == made[:2]
    judge = REGISTRY.get_task("super_glue_record_v102").postprocess
    assert judge("Ann", example=made[0], is_target=True) == {"value": ["Ann", "Bob"], "group": (1, 5)}
    assert judge("Bob", example=made[0]) == {"value": "Bob"}


def test_wsc_trains_on_right_nouns_only_and_is_judged_by_the_noun():
    row = {
        "text": "Mitchell asked Tom if he could lend some money.",
        "target": {"span1_text": "Tom", "span1_index": 2, "span2_text": "he", "span2_index": 4},
        "idx": 0,
        "label": False,
    }
    train, evaluate = "super_glue_wsc_v102_simple_train", "super_glue_wsc_v102_simple_eval"
    assert texts(train, row) == []
    assert texts(train, {**row, "label": True}) == texts(evaluate, row)
    assert texts(evaluate, row) == [("wsc: Mitchell asked Tom if *he* could lend some money.", "Tom")]
    (made,) = rows(evaluate, row)
    judge, example = REGISTRY.get_task(evaluate).postprocess, {**made, "targets_pretokenized": "Tom's brother"}
    assert judge("", example=example, is_target=True) == 0
    assert [judge(text, example=example) for text in ("the brother", "Tom's", "")] == [0, 1, -1]


def test_a_pronoun_beside_the_position_in_wsc_is_located():
    row = {"span1_text": "Tom", "span1_index": 0, "span2_text": "him", "span2_index": 3, "label": 1}
    (made,) = rows("super_glue_wsc_v102_simple_eval", {**row, "text": 'Tom laughed. "Good for him," he said. '})
    assert made["inputs"] == 'wsc: Tom laughed. "Good for *him* ," he said.'
    with pytest.raises(DataError, match="the pronoun 'him' is not in"):
        rows("super_glue_wsc_v102_simple_eval", {**row, "text": "Tom laughed and was glad."})


def test_an_answer_that_is_not_a_run_of_words_is_left_out_of_spans():
    row = {"id": "b", "context": "context without answers.", "question": "?", "answers": {"text": ["the answer"]}}
    assert texts("squad_v010_allanswers_span", row) == []


def test_spans_of_answers_are_right_by_the_metric():
    row = {"id": "b", "context": "No, it was (so he said) Tom-Tom, the cat.", "question": "?"}
    answers = {"text": ["Tom-Tom, the cat"]}
    (made,) = rows("squad_v010_allanswers_span", {**row, "answers": answers})
    task = REGISTRY.get_task("squad_v010_allanswers_span")
    target = task.postprocess(made["targets"], example=made, is_target=True)
    assert task.metrics[0]([target], [task.postprocess(made["targets"], example=made)]) == {"em": 100.0, "f1": 100.0}


def test_trivia_qa_has_an_example_for_every_text_and_answer_in_it():
    row = {
        "question": "Who?",
        "entity_pages": {"wiki_context": ["It was Tom, or\nBob.", "Nobody."]},
        "search_results": {"search_context": ["BOB!"]},
        "answer": {"normalized_aliases": ["tom", "bob"]},
    }
    first = "question: Who ? context: It was Tom , or Bob . "
    assert texts("trivia_qa_v010", row) == [(first, "tom"), (first, "bob"), ("question: Who ? context: BOB ! ", "bob")]


def test_long_inputs_of_trivia_qa_are_cut_around_the_answer():
    example = {"inputs": np.arange(100, 160), "targets": np.array([130, 131])}
    seen = set()
    for seed in range(60):
        made = window_with_answer(example, {"inputs": 10}, np.random.default_rng(seed))["inputs"]
        assert len(made) == 10
        assert {130, 131} <= set(made.tolist())
        seen.add(int(made[0]))
    assert seen == set(range(122, 131))
    absent = {"inputs": np.arange(20), "targets": np.array([99])}
    assert window_with_answer(absent, {"inputs": 10}, np.random.default_rng(0))["inputs"].tolist() == list(range(20))


def test_punctuation_is_separated_and_leaves_one_space():
    assert spaced("What is  J.R.R.'s\n“name”?") == "What is J . R . R . ' s “name” ? "


def test_answers_become_classes_and_numbers():
    classes = REGISTRY.get_task("glue_cola_v002").postprocess
    assert [classes(text) for text in ("unacceptable", "acceptable", "accept", "")] == [0, 1, -1, -1]
    score = REGISTRY.get_task("glue_stsb_v002").postprocess
    assert [score(text) for text in ("3.4", "much", "nan", "-Infinity", "1e999")] == [3.4, -1.0, -1.0, -1.0, -1.0]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        (
            "glue_cola_v002",
            {"sentence": "S", "label": "good"},
            "the label 'good' is not one of the classes unacceptable",
        ),
        ("glue_cola_v002", {"sentence": "S", "label": 2}, "the label 2 is not one of"),
        (
            "glue_rte_v002",
            {"sentence1": "S", "label": 1},
            "a row has no sentence2\n  its columns are: sentence1, label",
        ),
        ("wmt14_ende_v003", {"en": "S", "fr": "T"}, "a row has no de\n  its columns are: en, fr"),
        ("squad_v010", {"id": 1, "question": "", "context": "", "answers": {"text": []}}, "has no answer"),
        ("glue_wnli_v002_simple_eval", PAIR, "no pronoun of 'A b.' is replaced"),
    ],
)
def test_rows_that_do_not_fit_are_explained(name, row, message):
    with pytest.raises(DataError, match=message.replace("?", r"\?")):
        rows(name, row)


def test_a_twin_is_named_before_the_suffix_for_evaluation():
    names = {"a": "a_2_sentinel", "a_v1_train": "a_v1_2_sentinel_train", "a_eval": "a_2_sentinel_eval"}
    names |= {"b.c_eval": "b.c_2_sentinel_eval", "x_dev_more": "x_2_sentinel_dev_more"}  # as SeqIO names them
    task = REGISTRY.get_task("glue_cola_v002")
    assert {name: with_sentinels(task.replace(name=name), 2).name for name in names} == names


def test_the_answer_of_a_twin_is_judged_without_its_sentinels():
    task = with_sentinels(REGISTRY.get_task("glue_cola_v002"))
    said = ("<extra_id_0> acceptable", " <extra_id_0>acceptable ", "acceptable", "<extra_id_1> acceptable")
    assert [task.postprocess(text) for text in said] == [1, 1, 1, -1]


def test_translation_of_any_two_languages_is_a_step_for_users():
    made = Translate("ja", "en")({"ja": "犬", "en": "dog"})
    assert made == {"inputs": "translate Japanese to English: 犬", "targets": "dog"}
