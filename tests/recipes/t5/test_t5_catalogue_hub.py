"""Named tasks without a folder: the data sets of the hub that they request, and the examples from its rows.

A stand-in answers instead of the network. It has the columns of the hub's data sets.
"""

import pytest

import pretrainkit.recipes.t5.catalogue  # noqa: F401  (makes the tasks known)
from pretrainkit.errors import DataError
from pretrainkit.tasks.named_data import NamedData
from pretrainkit.tasks.supply import Supply
from pretrainkit.tasks.task import REGISTRY
from pretrainkit.tasks.vocabulary import ByteVocabulary
from support.hub_stand_in import stand_in

GLUE, SUPER_GLUE = "nyu-mll/glue", "aps/super_glue"
PAIR = {"sentence1": "It rains.", "sentence2": "Wet.", "idx": 0}
NLI = {"premise": "It rains.", "hypothesis": "Wet.", "idx": 0}
SCHEMA = {"text": "Tom said he slept.", "span1_index": 0, "span2_index": 2, "span1_text": "Tom", "span2_text": "he"}
SQUAD = {
    "id": "a",
    "title": "t",
    "context": "Tom did.",
    "question": "Who?",
    "answers": {"text": ["Tom"], "answer_start": [0]},
}
TRIVIA = {
    "question": "Who?",
    "entity_pages": {"title": ["t"], "wiki_context": ["Tom did."]},
    "search_results": {"title": ["s"], "search_context": ["Ann did."]},
    "answer": {"value": "Tom", "aliases": ["Tom"], "normalized_aliases": ["tom"]},
}
RECORD = {
    "passage": "Tom ate.\n@highlight\nHe was full.",
    "query": "@placeholder ate.",
    "entities": ["Ann", "Tom"],
    "answers": ["Tom"],
    "idx": {"passage": 3, "query": 5},
}
DPR = {"sentence": "Tom fed Ann since he had food.", "pronoun": "he", "candidates": ["Tom", "Ann"], "label": 0}
GERMAN = {"translation": {"de": "Zwei.", "en": "Two."}}

CASES = {
    "glue_cola_v002": (
        GLUE,
        "cola",
        {"sentence": "It is.", "label": 1, "idx": 0},
        "cola sentence: It is.",
        "acceptable",
    ),
    "glue_sst2_v002": (GLUE, "sst2", {"sentence": "A gem.", "label": 1, "idx": 0}, "sst2 sentence: A gem.", "positive"),
    "glue_mrpc_v002": (
        GLUE,
        "mrpc",
        PAIR | {"label": 1},
        "mrpc sentence1: It rains. sentence2: Wet.",
        "equivalent",
    ),
    "glue_qqp_v002": (
        GLUE,
        "qqp",
        {"question1": "A?", "question2": "B?", "label": 0, "idx": 0},
        "qqp question1: A? question2: B?",
        "not_duplicate",
    ),
    "glue_stsb_v002": (GLUE, "stsb", PAIR | {"label": 3.25}, "stsb sentence1: It rains. sentence2: Wet.", "3.2"),
    "glue_mnli_v002": (GLUE, "mnli", NLI | {"label": 0}, "mnli hypothesis: Wet. premise: It rains.", "entailment"),
    "glue_qnli_v002": (
        GLUE,
        "qnli",
        {"question": "Who?", "sentence": "Tom.", "label": 1, "idx": 0},
        "qnli question: Who? sentence: Tom.",
        "not_entailment",
    ),
    "glue_rte_v002": (GLUE, "rte", PAIR | {"label": 0}, "rte sentence1: It rains. sentence2: Wet.", "entailment"),
    "super_glue_boolq_v102": (
        SUPER_GLUE,
        "boolq",
        {"question": "q", "passage": "P", "idx": 0, "label": 1},
        "boolq passage: P question: q",
        "True",
    ),
    "super_glue_cb_v102": (
        SUPER_GLUE,
        "cb",
        NLI | {"label": 1},
        "cb hypothesis: Wet. premise: It rains.",
        "contradiction",
    ),
    "super_glue_copa_v102": (
        SUPER_GLUE,
        "copa",
        {"premise": "P", "choice1": "A", "choice2": "B", "question": "effect", "idx": 0, "label": 1},
        "copa choice1: A choice2: B premise: P question: effect",
        "choice2",
    ),
    "super_glue_multirc_v102": (
        SUPER_GLUE,
        "multirc",
        {
            "paragraph": "T",
            "question": "q",
            "answer": "a",
            "idx": {"paragraph": 0, "question": 0, "answer": 0},
            "label": 1,
        },
        "multirc question: q answer: a paragraph: T",
        "True",
    ),
    "super_glue_record_v102": (
        SUPER_GLUE,
        "record",
        RECORD,
        "record query: @placeholder ate. entities: Ann, Tom passage: Tom ate. He was full.",
        "Tom",
    ),
    "super_glue_wic_v102": (
        SUPER_GLUE,
        "wic",
        {"word": "w", "sentence1": "A", "sentence2": "B", "start1": 0, "idx": 0, "label": 0},
        "wic sentence1: A sentence2: B word: w",
        "False",
    ),
    "super_glue_wsc_v102_simple_train": (
        SUPER_GLUE,
        "wsc.fixed",
        SCHEMA | {"idx": 0, "label": 1},
        "wsc: Tom said *he* slept.",
        "Tom",
    ),
    "dpr_v001_simple": (
        "community-datasets/definite_pronoun_resolution",
        None,
        DPR,
        "wsc: Tom fed Ann since *he* had food.",
        "Tom",
    ),
    "squad_v010_allanswers": (
        "rajpurkar/squad",
        None,
        SQUAD,
        "question: Who ? context: Tom did . ",
        "Tom",
    ),
    "trivia_qa_v010": ("mandarjoshi/trivia_qa", "rc", TRIVIA, "question: Who ? context: Tom did . ", "tom"),
    "cnn_dailymail_v002": (
        "abisee/cnn_dailymail",
        "3.0.0",
        {"article": "Long.", "highlights": "Short .", "id": "x"},
        "summarize: Long.",
        "Short .",
    ),
    "wmt14_ende_v003": ("wmt/wmt14", "de-en", GERMAN, "translate English to German: Two.", "Zwei."),
    "wmt_t2t_ende_v003": ("wmt/wmt_t2t", "de-en", GERMAN, "translate English to German: Two.", "Zwei."),
}


def supplied(name):
    return REGISTRY.get_task(name).supplied(Supply(ByteVocabulary(), {}))


@pytest.mark.parametrize("name", CASES)
def test_a_named_task_without_a_folder_asks_the_hub_and_reads_its_columns(name, monkeypatch):
    path, configuration, row, inputs, targets = CASES[name]
    hub = stand_in(monkeypatch, {(path, configuration): [row]})
    examples = list(supplied(name).bind("train"))
    assert set(hub.asked) == {(path, configuration, "train")}
    assert [(one["inputs_pretokenized"], one["targets_pretokenized"]) for one in examples] == [(inputs, targets)]


@pytest.mark.parametrize("name", [name for name in REGISTRY.names() if name in REGISTRY._tasks])
def test_every_named_task_has_a_data_set_of_the_hub_or_a_message_that_it_needs_files(name, monkeypatch):
    source = REGISTRY.get_task(name).source
    if not isinstance(source, NamedData):
        pytest.skip("a task of another test")
    hub = stand_in(monkeypatch, {})
    advice = rf"data\.task_folders\.{source.benchmark}=DIR"
    with pytest.raises(DataError, match=advice):
        source.supplied(Supply(ByteVocabulary(), {})).file_sizes(source.splits[0])
    assert len(hub.asked) == (source.hub is not None)
    assert not hub.asked or hub.asked[0][0].count("/") == 1


@pytest.mark.parametrize(("part", "configuration"), [("", "en"), ("_noclean", "en.noclean")])
def test_text_of_c4_comes_from_the_hub(part, configuration, monkeypatch):
    rows = [{"text": f"document {number}", "timestamp": "t", "url": "u"} for number in range(3)]
    hub = stand_in(monkeypatch, {("allenai/c4", configuration): rows})
    source = REGISTRY.get_task(f"c4{part}_v020_unsupervised").source.supplied(Supply(ByteVocabulary(), {}))
    assert source.example("validation", 2)["text"] == "document 2"
    assert hub.asked == [("allenai/c4", configuration, "validation")]


def test_rows_of_a_test_set_without_labels_have_an_unknown_target(monkeypatch):
    hub = stand_in(monkeypatch, {(GLUE, "rte"): [PAIR | {"label": -1}]})
    assert next(iter(supplied("glue_rte_v002").bind("test")))["targets_pretokenized"] == "<unk>"
    assert hub.asked[0][2] == "test"
