"""Conversion of rows for a model."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit import api
from pretrainkit.data.source import BatchSource
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.glue.answers import records_of
from pretrainkit.recipes.glue.config import GlueDataConfig
from pretrainkit.recipes.glue.kinds.texts import classes_of, numbered
from pretrainkit.recipes.glue.presets import PRESETS
from pretrainkit.recipes.glue.recipe import RECIPE
from pretrainkit.recipes.glue.source import names_in, open_texts, read_place, task_of
from pretrainkit.recipes.glue.tasks import TASKS
from pretrainkit.recipes.token_reader import pair_lengths
from pretrainkit.running.initial import with_encoder
from pretrainkit.tasks.row_files import open_rows
from pretrainkit.tokenizers.punkt import read_abbreviations
from pretrainkit.tokenizers.subwords import read_classes
from support.glue_toys import WORDS


def cut_one_by_one(first, second, room):
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1), st.integers(2, 130))
def test_pairs_lose_tokens_of_the_longer_text_one_by_one(pairs, room):
    first, second = np.array(pairs, np.int64).T
    found = zip(*(kept.tolist() for kept in pair_lengths(first, second, room)), strict=True)
    assert list(found) == [cut_one_by_one(*pair, room) for pair in pairs]


@pytest.mark.parametrize(
    ("lengths", "kept"), [((200, 10), (115, 10)), ((10, 200), (10, 115)), ((63, 63), (63, 62)), ((64, 130), (63, 62))]
)
def test_fact_39_of_128_tokens_no_text_is_lost(lengths, kept):
    first, second = (np.array([length]) for length in lengths)
    assert tuple(int(one[0]) for one in pair_lengths(first, second, 125)) == kept


class Sized(BatchSource):
    """A number of examples that is never read."""

    def __init__(self, size):
        self._size = size

    sizes = property(lambda self: (self._size,))
    fingerprint = "sized"

    def lengths(self, records):
        return np.ones(len(records), np.int64)

    def build(self, records):
        return {}


@pytest.mark.parametrize(
    ("task", "size", "num_steps", "num_warmup_steps"),
    [
        ("cola", 8_551, 801, 80),
        ("sst2", 67_349, 6_313, 631),
        ("mrpc", 3_668, 343, 34),
        ("stsb", 5_749, 538, 53),
        ("qqp", 363_846, 34_110, 3_411),
        ("mnli", 392_702, 36_815, 3_681),
        ("qnli", 104_743, 9_819, 981),
        ("rte", 2_490, 233, 23),
    ],
)
def test_fact_39_steps_and_warm_up(task, size, num_steps, num_warmup_steps):
    config = PRESETS[task]()
    loader = api.build_loader(config, Sized(size), rank=0, world_size=1)
    config = api.with_num_steps(config, loader)
    assert (config.total_steps, config.schedule.warmup_steps(config.total_steps)) == (num_steps, num_warmup_steps)


def bound(task, encoder, glue, **data):
    config = PRESETS[task]()
    given = {"task_folders": {"glue": str(glue)}, **data}
    config = config.model_copy(update={"init_from": str(encoder), "data": config.data.model_copy(update=given)})
    return RECIPE.bind(with_encoder(RECIPE, config)[0])


def first_examples(config, split, num=2):
    source = RECIPE.open_data(config, split)
    return source.build(records_of(source, np.arange(num)))


def test_fact_39_single_texts_have_control_tokens_and_type_0(encoder, glue):
    batch = first_examples(bound("sst2", encoder, glue), "train")
    text = (glue / "SST-2" / "train.tsv").read_text().splitlines()[1].split("\t")[0].split()
    end = batch["lengths"][0]
    assert [WORDS[i] for i in batch["input_ids"][:end]] == ["[CLS]", *text, "[SEP]"]
    assert not batch["token_type_ids"].any()
    assert batch["positions"][: end + 1].tolist() == [*range(end), 0]


def test_fact_39_the_second_text_of_a_pair_has_type_1_with_its_end(encoder, glue):
    batch = first_examples(bound("mrpc", encoder, glue), "train")
    *_, first, second = (glue / "MRPC" / "train.tsv").read_text().splitlines()[1].split("\t")
    end, num = batch["lengths"][0], len(first.split())
    words = [WORDS[i] for i in batch["input_ids"][:end]]
    assert words == ["[CLS]", *first.split(), "[SEP]", *second.split(), "[SEP]"]
    assert batch["token_type_ids"][:end].tolist() == [0] * (num + 2) + [1] * (end - num - 2)
    assert batch["second_begins"][0] == num + 2


def test_no_example_is_longer_than_the_maximum(encoder, glue):
    batch = first_examples(bound("mrpc", encoder, glue, max_seq_length=8), "train", 40)
    assert batch["lengths"].max() == 8


def test_fact_40_scores_of_similarity_stay_real_numbers(encoder, glue):
    batch = first_examples(bound("stsb", encoder, glue), "train", 40)
    assert batch["label"].dtype == np.float32
    assert {round(score, 3) for score in batch["label"].tolist()} <= {0.0, 2.3, 2.5, 4.8}
    assert (batch["label"] % 1 != 0).any()


def test_mnli_is_held_out_twice(encoder, glue):
    assert RECIPE.open_data(bound("mnli", encoder, glue), "valid").sizes == (24, 24)


def test_labels_are_names_or_numbers_of_classes():
    assert numbered(["b", "1", 0, None], ("a", "b")).tolist() == [1, 1, 0, -1]
    assert classes_of(["10", "9", None]) == ("9", "10")
    with pytest.raises(DataError, match="without a class: c"):
        numbered(["c"], ("a", "b"))


def test_an_unknown_label_is_not_taken_for_the_number_of_a_class():
    assert numbered(["5", 1], ("1", "2", "5")).tolist() == [2, 0]
    with pytest.raises(DataError, match="without a class: 0"):
        numbered(["0"], ("1", "2", "5"))
    with pytest.raises(DataError, match="without a class: 1"):
        numbered([1], ("0.5", "1.5"))


def test_whole_numbers_of_a_table_with_gaps_are_the_same_classes():
    """pandas stores 1 to 3 as 1.0 to 3.0 where a label is missing."""
    assert classes_of([3.0, 1.0, 2.0]) == classes_of([1, 2, 3]) == ("1", "2", "3")
    assert numbered([2, 2.0, "2"], ("1", "2", "3")).tolist() == [1, 1, 1]
    assert numbered([2.0, "2.0"], ("1.0", "2.0")).tolist() == [1, 1]  # classes of an older run


@pytest.mark.parametrize("label", ["nan", float("nan"), float("inf"), 1e39])
def test_numbers_to_learn_are_finite(label):
    assert np.isnan(numbered([None], ())).all()
    with pytest.raises(DataError, match="not finite float32 numbers"):
        numbered([1.0, label], ())


def read_labels(labels, task, path):
    path.write_text("".join(json.dumps({"t": "fine", "label": label}) + "\n" for label in labels))
    return [row.truth for row in read_place(open_rows(path, "train"), "train", task, needs_label=True)]


def test_minus_one_and_minus_are_ordinary_labels_in_own_files(tmp_path):
    own = task_of(GlueDataConfig(texts=("t",)))
    for labels in ([-1, 0, 1], [-1.0, 0.5], ["-1", "1"], ["-", "+"]):
        assert read_labels(labels, own, tmp_path / "rows.jsonl") == labels
    with pytest.raises(DataError, match="row 1 of train has no label"):
        read_labels([0, None], own, tmp_path / "rows.jsonl")
    with pytest.raises(DataError, match="row 1 of train has no label"):
        read_labels([0, float("nan")], own, tmp_path / "rows.jsonl")
    with pytest.raises(DataError, match=r"row 1 of train has no label: its label is -1\n.*use a split with labels"):
        read_labels([1, -1], replace(TASKS["cola"], texts=(("t",),)), tmp_path / "rows.jsonl")


def test_numbers_that_are_read_as_classes_are_reported_with_the_kind_that_predicts_them(caplog):
    with caplog.at_level(logging.WARNING):
        assert classes_of(["1", "0", 2.0]) == ("0", "1", "2")
        assert classes_of(["v1.5", "nan", "inf", "-"]) == ("-", "inf", "nan", "v1.5")
    assert not caplog.text
    classes = classes_of([number / 10 for number in range(30)])
    assert "such as 0.1, and each of the 30 different ones is a class; to predict numbers set data.kind" in caplog.text
    with pytest.raises(DataError, match=r"classes are 0, .* and 10 more; to predict numbers set data.kind=numbers$"):
        numbered([3.25], classes)


@pytest.mark.parametrize("labels", [["a"], ["a", "b"], {"a": 1}])
def test_several_labels_of_a_row_are_refused_rather_than_read_as_the_name_of_one(labels, tmp_path):
    with pytest.raises(DataError, match=r"row 1 of train has several labels: .*\n.*train one model for each class"):
        read_labels(["a", labels], task_of(GlueDataConfig(texts=("t",))), tmp_path / "rows.jsonl")


def test_mirrors_of_a_task_with_other_columns_or_a_header_are_explained(tmp_path):
    with pytest.raises(DataError, match="the classes are no, yes; remove the line of column names"):
        numbered(["label", "no"], ("no", "yes"))
    (tmp_path / "rows.jsonl").write_text('{"text": "fine", "labels": 1}\n')
    for task, advice in ((TASKS["sst2"], "use task own with data.train=FILE"), (None, "set the columns: data.texts")):
        own = task or task_of(GlueDataConfig(texts=("sentence",)))
        with pytest.raises(DataError, match=rf"has no text in sentence: it has text, labels\n.*{advice}"):
            read_place(open_rows(tmp_path / "rows.jsonl", "train"), "train", own, needs_label=True)


def test_test_sets_without_labels_are_named_as_the_cause(encoder, tmp_path):
    with pytest.raises(DataError, match="the classes are 0, 1; test sets without labels often have -1"):
        numbered([-1, -1], ("0", "1"))
    (tmp_path / "test.jsonl").write_text('{"t": "fine", "label": -1}\n' * 4)
    words = [f"init_from={encoder}", f"data.train={tmp_path}/test.jsonl", "data.texts=t", "data.label=label"]
    with pytest.raises(DataError, match=r"at least two classes, but its classes are: -1\n.*test sets often have -1"):
        RECIPE.bind(with_encoder(RECIPE, api.load_config("glue/own", words))[0])


def test_the_examples_follow_from_length_and_rows(encoder, glue):
    config = bound("rte", encoder, glue)
    shorter = config.model_copy(update={"data": config.data.model_copy(update={"max_seq_length": 16})})
    reader = RECIPE._reader(config)
    prints = {open_texts(one, reader, ["train"]).fingerprint for one in (config, config, shorter)}
    assert len(prints) == 2


def test_a_task_and_own_files_exclude_each_other():
    config = PRESETS["cola"]().model_copy(update={"data": GlueDataConfig(task="cola", texts=("a",))})
    assert any("data.texts" in problem for problem in config.problems())


def test_without_an_encoder_the_message_names_the_setting(glue):
    config = PRESETS["cola"]()
    with pytest.raises(ConfigError, match="init_from=RUN"):
        RECIPE.bind(config)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    (tmp_path / "names.txt").write_text("\ufeffgood\r\nbad\r\n")
    assert names_in(str(tmp_path / "names.txt")) == ("good", "bad")
    assert read_classes(str(tmp_path / "names.txt")) == ("good", "bad")
    assert read_abbreviations(tmp_path / "names.txt")[0] == "good"


def test_held_out_rows_that_are_trained_on_are_reported(encoder, tmp_path, caplog):
    lines = [json.dumps({"t": f"a {text}", "label": number % 2}) for number, text in enumerate("abcdef")]
    (tmp_path / "train.jsonl").write_text("\n".join(lines[:4]))
    (tmp_path / "valid.jsonl").write_text("\n".join(lines[3:]))
    for valid, expected in (("train", "4 of the 4 held-out rows"), ("valid", "1 of the 3 held-out rows")):
        words = [f"data.train={tmp_path}/train.jsonl", f"data.valid={tmp_path}/{valid}.jsonl", "data.texts=t"]
        config = RECIPE.bind(with_encoder(RECIPE, api.load_config("glue/own", [f"init_from={encoder}", *words]))[0])
        RECIPE.open_data(config, "train")
        assert f"{expected} have the same texts as rows of data.train" in caplog.text


@pytest.mark.parametrize(("num_long", "is_reported"), [(0, False), (4, True)])
def test_texts_that_are_cut_are_reported_if_they_are_many(encoder, tmp_path, caplog, num_long, is_reported):
    rows = [{"text": " ".join(WORDS[:3] * (9 if n < num_long else 1)), "label": f"{n % 2}"} for n in range(20)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [f"data.train={tmp_path}/train.jsonl", "data.texts=text", "data.max_seq_length=16"]
    config = RECIPE.bind(with_encoder(RECIPE, api.load_config("glue/own", [f"init_from={encoder}", *words]))[0])
    with caplog.at_level(logging.WARNING):
        RECIPE.open_data(config, "train")
    assert ("20 % of the training examples have data.max_seq_length=16 tokens" in caplog.text) == is_reported


def test_answers_that_are_not_where_they_should_be_are_reported_and_refused_if_all_are(encoder, tmp_path, caplog):
    path = tmp_path / "train.jsonl"
    words = [f"init_from={encoder}", f"data.train={path}", f"data.valid={path}"]
    words += ["data.max_seq_length=128", "data.spans.stride=16"]
    for begins, expected in (([0, 2], None), ([0, 1], "1 of 2 questions"), ([9, 1], "2 of 2 questions")):
        caplog.clear()
        rows = [
            {"question": "a", "context": "a b", "answers": {"text": [text], "answer_start": [begin]}}
            for text, begin in zip("ab", begins, strict=True)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = RECIPE.bind(with_encoder(RECIPE, api.load_config("glue/qa", words))[0])
        if expected == "2 of 2 questions":
            with pytest.raises(DataError, match=f"the answers to {expected}"):
                RECIPE.open_data(config, "train")
            continue
        RECIPE.open_data(config, "train")
        assert ("the answers to" in caplog.text) == (expected is not None)
        assert (expected or "") in caplog.text
