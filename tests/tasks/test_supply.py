"""Parts of a task that a run supplies."""

import pytest

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.tasks.cache_writer import cache_task
from pretrainkit.tasks.named_data import Hub, NamedData
from pretrainkit.tasks.preprocessors import tokenize
from pretrainkit.tasks.sources import FunctionSource
from pretrainkit.tasks.steps import CacheMarker
from pretrainkit.tasks.supply import RunSteps, RunVocabulary, Supply
from pretrainkit.tasks.task import Feature, Task, TaskRegistry
from pretrainkit.tasks.vocabulary import ByteVocabulary
from pretrainkit.tasks.vocabulary_folder import open_vocabulary
from support.remedies import followed


def rows(split):
    return [{"targets": f"{split} {number}"} for number in range(5)]


def reverse(example):
    return {**example, "targets": example["targets"][::-1]}


SOURCE = FunctionSource(rows, ("train",))
OPEN = Task("open", SOURCE, {"targets": Feature(RunVocabulary())}, (tokenize(), CacheMarker(), RunSteps("say how")))


def test_a_task_is_used_with_the_supplies_of_the_run():
    task = OPEN.supplied(Supply(ByteVocabulary(), steps=lambda: [reverse]))
    assert bytes((task.bind("train")[3]["targets"] - 3).astype("uint8")) == b"3 niart"
    assert task.supplied(Supply()) is task


@pytest.mark.parametrize(
    ("supply", "message"),
    [
        (Supply(steps=tuple), r"leaves its vocabulary to the run.*\n.*--tokenizer DIR"),
        (Supply(ByteVocabulary()), r"leaves steps to the run, but none are configured\n  say how"),
    ],
)
def test_missing_supplies_are_reported(supply, message):
    with pytest.raises(ConfigError, match=message):
        OPEN.supplied(supply)
    with pytest.raises(ConfigError, match="leaves steps to the run and is used without any"):
        OPEN.bind("train")
    task = OPEN.replace(preprocessors=[tokenize()])
    with pytest.raises(ConfigError, match="leaves its vocabulary to the run and is used without one") as error:
        task.bind("train")[0]
    assert "task.supplied(" in followed(error.value, "tasks/supply.py: a task leaves its vocabulary")
    assert len(task.supplied(Supply(vocabulary=open_vocabulary("bytes"))).bind("train")[0]["targets"])


def test_open_vocabularies_are_equal_to_each_other_and_to_no_other():
    assert RunVocabulary() == RunVocabulary()
    assert RunVocabulary() != ByteVocabulary()
    assert len({RunVocabulary(), RunVocabulary()}) == 1


def test_a_registry_supplies_its_tasks_once_and_those_added_later_too():
    registry = TaskRegistry()
    supplied = registry.supplied(Supply(ByteVocabulary(), steps=tuple))
    registry.add(OPEN)
    assert supplied.get("open") is supplied.get_task("open")
    assert supplied.task_names("open") == ("open",)
    assert registry.get("open") is OPEN


def test_a_task_that_cannot_be_pickled_is_cached_with_its_supplies(tmp_path):
    steps = (lambda row: row, tokenize(), CacheMarker())
    task = Task("open_and_local", SOURCE, OPEN.features, steps).supplied(Supply(ByteVocabulary()))
    cache_task(task, tmp_path, workers=2, num_shards=2, modules=("json",))
    assert len(task.bind("train", caches=[tmp_path])) == 5


def test_data_of_users_are_also_resolved_by_name(tmp_path):
    (tmp_path / "dev.tsv").write_text("targets\na\n")
    data = NamedData("mine", hub=Hub("me/mine"))
    assert data.supplied(Supply(folders={"mine": str(tmp_path)})).splits == ("validation",)
    with pytest.raises(DataError, match=r"no data of mine in .*\n  expected train\.jsonl, .*\n  pass its folder"):
        data.supplied(Supply(folders={"mine": str(tmp_path.parent)}))


def test_a_folder_of_data_that_no_task_names_is_refused():
    registry = TaskRegistry()
    registry.add(OPEN.replace(name="pairs", source=NamedData("pairs/short", hub=Hub("nobody/pairs"))))
    for name in ("pairs", "pairs/short", "all"):
        registry.supplied(Supply(folders={name: "here"}))
    with pytest.raises(ConfigError, match=r"no task uses data named 'pears', for which here is configured\n.*: pairs"):
        registry.supplied(Supply(folders={"pears": "here"}))
