"""Tasks without a folder: the data sets of the hub that they request, and the examples from its rows.

A stand-in answers instead of the network. It has the columns of the hub's data sets.
"""

import pytest

from pretrainkit.errors import DataError
from pretrainkit.recipes.glue.config import GlueDataConfig
from pretrainkit.recipes.glue.kinds.texts import numbered
from pretrainkit.recipes.glue.source import read_place, rows_of, task_of, valid_splits
from pretrainkit.recipes.glue.tasks import TASKS
from support.hub_stand_in import stand_in

PAIR = {"sentence1": "It rains.", "sentence2": "Wet."}
NLI = {"premise": "It rains.", "hypothesis": "Wet."}
RAIN = ("It rains.", "Wet.")
CASES = {
    "cola": ({"sentence": "It is."}, ("It is.",), 1, "acceptable"),
    "mrpc": (PAIR, RAIN, 1, "equivalent"),
    "qqp": ({"question1": "A?", "question2": "B?"}, ("A?", "B?"), 0, "not_duplicate"),
    "sst2": ({"sentence": "A gem."}, ("A gem.",), 1, "positive"),
    "stsb": (PAIR, RAIN, 3.25, 3.25),
    "mnli": (NLI, RAIN, 2, "contradiction"),
    "qnli": ({"question": "Who?", "sentence": "Tom."}, ("Who?", "Tom."), 1, "not_entailment"),
    "rte": (PAIR, RAIN, 0, "entailment"),
    "wnli": (PAIR, RAIN, 1, "entailment"),
    "ax": (NLI, RAIN, None, None),
}


@pytest.fixture
def hub(monkeypatch):
    rows = {
        name: [row | {"label": label, "idx": index} for index in (7, 8)] for name, (row, _, label, _) in CASES.items()
    }
    return stand_in(monkeypatch, {("nyu-mll/glue", name): found for name, found in rows.items()})


def read(name, split, *, needs_label):
    ((source, own),) = rows_of(GlueDataConfig(task=name), TASKS[name], split)
    return read_place(source, own, TASKS[name], needs_label=needs_label)


def test_the_replacement_hub_has_every_task():
    assert set(CASES) == set(TASKS)


@pytest.mark.parametrize("name", CASES)
def test_a_task_without_a_folder_asks_the_hub_for_its_own_splits(name, hub):
    task, config = TASKS[name], GlueDataConfig(task=name)
    assert task_of(config) is task
    _, texts, _, expected = CASES[name]
    labelled = [*(["train"] if task.valid_splits else []), *valid_splits(config, task)]
    for split in labelled:
        rows = read(name, split, needs_label=True)
        assert rows[1].texts == texts
        assert [row.index for row in rows] == [7, 8]
        (label, _) = numbered([row.truth for row in rows], task.classes or ())
        assert (task.classes[label] if task.classes else label) == expected
    for split in task.files:
        assert [row.truth for row in read(name, split, needs_label=False)] == [None, None]
    assert set(hub.asked) == {("nyu-mll/glue", name, split) for split in (*labelled, *task.files)}


def test_test_sets_of_the_hub_have_no_labels_to_train_on(hub):
    with pytest.raises(DataError, match="has no label"):
        read("rte", "test", needs_label=True)


def test_if_the_hub_cannot_be_reached_a_local_folder_is_suggested(monkeypatch):
    stand_in(monkeypatch, {})
    with pytest.raises(DataError, match=r"data\.task_folders\.glue=DIR"):
        read("rte", "train", needs_label=True)
