"""The offline cache of tasks: the same examples, whole or absent, and noticed when it is stale."""

import json
import pickle

import numpy as np
import pytest

from pretrainkit.data.order import Order
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.tasks.cache import TaskCache, decoded_extras, encoded_extras, task_folder
from pretrainkit.tasks.cache_writer import cache_task
from pretrainkit.tasks.preprocessors import append_eos_after_trim, format_strings, tokenize
from pretrainkit.tasks.rates import proportional, proportional_to_characters
from pretrainkit.tasks.sources import FunctionSource, TextLines
from pretrainkit.tasks.steps import CacheMarker, Filter
from pretrainkit.tasks.task import Feature, Mixture, Task, TaskRegistry
from pretrainkit.tasks.vocabulary import ByteVocabulary
from pretrainkit.tokenizers.shards import TokenShards
from support.remedies import followed

LENGTHS = {"inputs": 12, "targets": 4}
FEATURES = {
    "inputs": Feature(ByteVocabulary()),
    "targets": Feature(ByteVocabulary()),
    "weights": Feature(ByteVocabulary(), dtype="float32", required=False),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "indexes"))


def not_dropped(example):
    return "drop" not in example["text"]


def with_more(example):
    number = len(example["text"])
    more = {"answers": ["ä", {"a": None}], "number": number, "array": np.arange(number, dtype=np.int16).reshape(1, -1)}
    return example | more | ({"weights": np.ones(number, np.float32)} if number % 2 else {})


@pytest.fixture
def task(tmp_path):
    (tmp_path / "train.txt").write_text("".join(f"line {n}{' drop' * (n % 3 == 0)}\n" for n in range(20)) + "\n")
    (tmp_path / "valid.txt").write_text("held out\n")
    steps = (
        Filter(not_dropped),
        with_more,
        format_strings(inputs="{text}", targets="{number}"),
        tokenize(),
        CacheMarker(),
        append_eos_after_trim,
    )
    source = TextLines({"train": tmp_path / "train.txt", "validation": tmp_path / "valid.txt"})
    return Task("group:lines", source, FEATURES, steps)


def assert_equal_examples(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            assert np.array_equal(one[key], other[key]), key
            assert np.asarray(one[key]).dtype == np.asarray(other[key]).dtype


@pytest.mark.parametrize("num_shards", [1, 4])
def test_a_cache_gives_the_examples_that_steps_give(task, tmp_path, num_shards):
    folder = cache_task(task, tmp_path / "out", num_shards=num_shards)
    assert folder == tmp_path / "out" / "group" / "lines"
    for split in task.splits:
        fresh, cached = task.bind(split, LENGTHS), task.bind(split, LENGTHS, caches=[tmp_path / "out"])
        assert (fresh.is_cached, cached.is_cached) == (False, True)
        assert_equal_examples(fresh, cached)
        assert_equal_examples(fresh, pickle.loads(pickle.dumps(cached)))
    assert not (folder / ".work").exists()


def test_stats_count_examples_and_rates_use_them(task, tmp_path):
    folder = cache_task(task, tmp_path / "out", num_shards=3)
    stored = task.uncached("train")
    stats = TaskCache(folder).stats("train")
    assert stats["examples"] == len(stored) == 14
    for name in ("inputs", "targets"):
        lengths = [len(example[name]) for example in stored]
        assert (stats[f"{name}_tokens"], stats[f"{name}_max_tokens"]) == (sum(lengths), max(lengths))
        assert stats[f"{name}_chars"] == sum(len(example[f"{name}_pretokenized"]) for example in stored)
    assert TaskCache(folder).info("train")["features"]["inputs"] == {"shape": [None], "dtype": "int32"}
    known = TaskRegistry()
    known.add(task)
    known.add(Mixture("examples", [task.name], proportional()))
    known.add(Mixture("characters", [task.name], proportional_to_characters(temperature=2, feature="inputs")))
    assert known.rates("examples") == {task.name: 21.0}
    assert known.rates("examples", caches=[tmp_path / "out"]) == {task.name: 14.0}
    rate = known.rates("characters", caches=[tmp_path / "out"])[task.name]
    assert rate == pytest.approx(stats["inputs_chars"] ** 0.5)
    with pytest.raises(
        DataError, match="the number of characters of 'inputs' in task 'group:lines' is unknown"
    ) as error:
        known.rates("characters")  # with the cache of above they are known
    followed(error.value, "tasks/rates.py: the number of characters")


def test_a_feature_of_the_cache_is_a_folder_of_token_shards(task, tmp_path):
    folder = cache_task(task, tmp_path / "out", num_shards=2)
    shards = TokenShards.open(folder / "train" / "inputs", verify=True)
    stored = task.uncached("train")
    assert shards.num_documents == len(stored)
    assert [int(sum(map(len, shards.document(n)))) for n in range(14)] == [len(example["inputs"]) for example in stored]


def test_a_cache_is_invisible_until_it_is_completed(task, tmp_path, caplog):
    folder = cache_task(task, tmp_path / "out")
    assert task.bind("train", caches=[tmp_path / "out"]).is_cached
    (folder / "COMPLETED").unlink()
    assert not task.bind("train", caches=[tmp_path / "out"]).is_cached
    assert "no cache of train is used; examples are computed while they are read" in caplog.text


def test_an_interrupted_cache_is_completed(task, tmp_path):
    (tmp_path / "train.txt").open("a").write("bad\n")

    seen = tmp_path / "seen.txt"

    def fragile(example):
        with open(seen, "a") as file:
            file.write(f"{example['text']}\n")
        if example["text"] == "bad" and not (tmp_path / "fixed").exists():
            raise ValueError("broken")
        return example

    fragile_task = task.replace(preprocessors=(fragile, *task.preprocessors))
    with pytest.raises(DataError, match="'fragile' failed for example 21: ValueError: broken"):
        cache_task(fragile_task, tmp_path / "out", splits=["train"], num_shards=4)
    folder = task_folder(tmp_path / "out", task.name)
    assert not (folder / "COMPLETED").exists()
    with pytest.raises(DataError, match="was started from other input or with other settings"):
        cache_task(fragile_task, tmp_path / "out", splits=["train"], num_shards=3)
    (tmp_path / "fixed").touch()
    seen.unlink()
    cache_task(fragile_task, tmp_path / "out", splits=["train"], num_shards=4)
    assert seen.read_text().splitlines() == [*(f"line {n}{' drop' * (n % 3 == 0)}" for n in range(16, 20)), "", "bad"]
    assert_equal_examples(fragile_task.bind("train"), fragile_task.bind("train", caches=[tmp_path / "out"]))


def test_a_stale_cache_is_ignored_and_can_be_rebuilt(task, tmp_path, caplog):
    out = tmp_path / "out"
    folder = cache_task(task, out)
    assert cache_task(task, out) == folder
    edited = task.replace(preprocessors=(Filter(lambda example: True), *task.preprocessors))
    assert not edited.bind("train", caches=[out]).is_cached
    advice = followed(caplog.messages[-2], "tasks/cache.py: task …: the cache in … is outdated")
    assert advice.split()[-5:] == ["cache", task.name, "--out", str(out), "--overwrite"]  # done below
    with pytest.raises(DataError, match="from other data, splits or steps: train, validation do not"):
        cache_task(edited, out)
    cache_task(edited, out, overwrite=True)
    assert edited.bind("train", caches=[out]).is_cached
    (tmp_path / "train.txt").write_text("another line\n")
    reopened = edited.replace(source=TextLines({"train": tmp_path / "train.txt"}))
    assert not reopened.bind("train", caches=[out]).is_cached
    other_vocabulary = {name: Feature(ByteVocabulary(5)) for name in ("inputs", "targets")}
    assert edited.fingerprint("validation") != edited.replace(features=other_vocabulary).fingerprint("validation")


def test_a_cache_outlives_its_source(task, tmp_path, caplog):
    cache_task(task, tmp_path / "out")
    (tmp_path / "train.txt").unlink()
    moved = task.replace(source=TextLines({"train": tmp_path / "train.txt"}))
    assert len(moved.bind("train", caches=[tmp_path / "out"])) == 14
    assert "is not checked" in caplog.text


def test_a_cache_of_one_folder_serves_while_another_lacks_it(task, tmp_path):
    cache_task(task, tmp_path / "b", splits=["validation"])
    caches = [tmp_path / "a", tmp_path / "b"]
    assert task.bind("validation", caches=caches).is_cached
    assert not task.bind("validation").is_cached
    assert not task.bind("train", caches=caches).is_cached


def test_tasks_that_cannot_be_cached_are_refused(task, tmp_path):
    with pytest.raises(ConfigError, match="cannot be cached\n  put a CacheMarker"):
        cache_task(task.replace(preprocessors=(tokenize(),)), tmp_path)
    rows = FunctionSource(lambda split: [{"inputs": [300], "targets": [5]}], ["train"])
    with pytest.raises(DataError, match="'inputs' must be a row of ids below 259"):
        cache_task(task.replace(source=rows, preprocessors=(CacheMarker(),)), tmp_path)
    rows = FunctionSource(lambda split: [{"inputs": [3], "targets": [5], "thing": object()}], ["train"])
    with pytest.raises(DataError, match="type object cannot be stored in a cache\n  add a step before"):
        cache_task(task.replace(source=rows, preprocessors=(CacheMarker(),)), tmp_path)


def test_two_processes_write_the_cache_that_one_writes(task, tmp_path):
    one = cache_task(task, tmp_path / "one", num_shards=3)
    two = cache_task(task, tmp_path / "two", num_shards=3, workers=2)
    names = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(two) for path in two.rglob("*") if path.is_file())
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def test_extras_come_back_as_they_were():
    example = {
        "a": "ä",
        "b": [1, None, {"c": True}],
        "d": np.arange(6, dtype=np.float32).reshape(2, 3),
        "e": np.int8(3),
    }
    back = decoded_extras(encoded_extras(example))
    assert np.array_equal(back.pop("d"), example["d"])
    assert back == {"a": "ä", "b": [1, None, {"c": True}], "e": 3}
    assert json.loads(encoded_extras({})) == {}


def test_the_order_of_a_cached_task_is_that_of_the_task_itself(task, tmp_path):
    cache_task(task, tmp_path / "out", num_shards=4)
    index = Order([14], seed=5).records(np.arange(28)).index
    fresh, cached = task.bind("train", LENGTHS), task.bind("train", LENGTHS, caches=[tmp_path / "out"])
    assert_equal_examples([fresh[int(n)] for n in index], [cached[int(n)] for n in index])
