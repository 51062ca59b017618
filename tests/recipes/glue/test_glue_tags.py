"""Labels of words: from files to a model that answers."""

import json
import random

import numpy as np
import pytest

from pretrainkit import api
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.glue.answers import records_of
from support.glue_toys import BAD, GOOD, OTHER, QUICK, sentence

ONE_STEP = ("data.num_epochs=null", "num_steps=1")


def tag_of(word):
    return "B-GOOD" if word in GOOD else "B-BAD" if word in BAD else "O"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """train.txt and valid.txt: a word and its label in each line."""
    folder, rng = tmp_path_factory.mktemp("tags"), random.Random(0)
    for name, num in (("train", 300), ("valid", 40)):
        sentences = [sentence(rng, rng.random() < 0.5).split() for _ in range(num)]
        text = "\n\n".join("\n".join(f"{word} {tag_of(word)}" for word in words) for words in sentences)
        (folder / f"{name}.txt").write_text(text + "\n")
    return folder


def finetune(encoder, files, out, *more):
    data = [f"data.{split}={files / split}.txt" for split in ("train", "valid")]
    config = api.load_config("glue/tags", [f"init_from={encoder}", *data, *QUICK, *more])
    return api.train(config, out, device="cpu")


@pytest.fixture(scope="module")
def finished(encoder, files, tmp_path_factory):
    out = tmp_path_factory.mktemp("tagged") / "run"
    return out, finetune(encoder, files, out, "data.num_epochs=4", "evaluate.every_epochs=null")


def test_it_learns_the_tag_of_each_word(finished):
    assert finished[1]["valid_f1"] > 90
    assert finished[1]["valid_score"] == finished[1]["valid_f1"]
    assert finished[1]["valid_accuracy"] > 90
    assert finished[1]["valid_cut_words"] == 0


def test_evaluating_words_again_equals_training(finished):
    metrics = api.evaluate(finished[0], device="cpu")
    assert metrics == {name: finished[1][f"valid_{name}"] for name in metrics}


def test_answers_name_every_word(finished, tmp_path):
    asked = [["fine", "and", "grim"], ["the"] * 40]
    (tmp_path / "new.jsonl").write_text("\n".join(json.dumps({"words": words}) for words in asked))
    out = api.predict(finished[0], tmp_path / "out.jsonl", input=tmp_path / "new.jsonl", device="cpu")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["words"] for line in lines] == asked
    assert lines[0]["tags"] == ["B-GOOD", "O", "B-BAD"]
    assert lines[1]["tags"] == ["O"] * 30 + [None] * 10
    assert all(0 <= share <= 1 for share in lines[0]["probabilities"])


def test_the_report_has_held_out_sentences(finished):
    samples = json.loads((finished[0] / "samples.json").read_text())
    assert len(samples) == 8
    assert {type(mark["is_right"]) for mark in samples[0]["answer"]} == {bool}


def test_a_resumed_run_on_words_ends_like_an_uninterrupted_run(encoder, files, tmp_path):
    settings = ("data.num_epochs=null", "checkpoint.every_steps=2", "schedule.name=constant")
    whole = finetune(encoder, files, tmp_path / "whole", *settings, "num_steps=4")
    finetune(encoder, files, tmp_path / "part", *settings, "num_steps=2")
    resumed = api.resume(tmp_path / "part", ["num_steps=4"], device="cpu")
    names = [name for name in whole if name == "loss" or name.startswith("valid_")]
    assert {name: resumed[name] for name in names} == {name: whole[name] for name in names}


def test_the_label_is_at_the_first_slot_of_its_word(finished):
    opened = api.open_model(finished[0])
    source = opened.recipe.open_data(opened.config, "valid")
    batch = source.build(records_of(source, np.array([3, 0])))
    classes = opened.config.model.classes
    words = source.examples.lines(np.array([3, 0]), [{"label": [], "share": []}] * 2)
    expected = [tag_of(word) for line in words for word in line["words"]]
    assert [classes[number] for number in batch["label"]] == expected
    assert batch["num_words"].tolist() == [len(line["words"]) for line in words]
    assert batch["word_begins"].tolist() == [
        begin + 1 + k for begin, num in zip(batch["cu_seqlens"], batch["num_words"]) for k in range(num)
    ]


def test_cut_words_are_counted_and_count_as_wrong(encoder, files, tmp_path):
    long = [["fine"] * 20]
    (tmp_path / "valid.txt").write_text("\n".join(f"{word} {tag_of(word)}" for word in long[0]))
    (tmp_path / "train.txt").write_text((files / "train.txt").read_text())
    metrics = finetune(encoder, tmp_path, tmp_path / "run", *ONE_STEP, "data.max_seq_length=12")
    assert metrics["valid_cut_words"] == 10
    assert metrics["valid_accuracy"] <= 50


def test_labels_come_from_a_file_in_its_order(encoder, files, tmp_path):
    (tmp_path / "labels.txt").write_text("O\nB-GOOD\nB-BAD\nB-NEVER\n")
    finetune(encoder, files, tmp_path / "run", *ONE_STEP, f"data.labels={tmp_path}/labels.txt")
    assert api.open_model(tmp_path / "run").config.model.classes == ("O", "B-GOOD", "B-BAD", "B-NEVER")
    (tmp_path / "labels.txt").write_text("O\nO\n")
    with pytest.raises(DataError, match="twice"):
        finetune(encoder, files, tmp_path / "again", *ONE_STEP, f"data.labels={tmp_path}/labels.txt")


def test_a_column_is_chosen_by_name(encoder, tmp_path):
    lines = [f"{k + 1}\t{word}\t_\tUP{k % 2}\tXP{k % 3}\t_\t0\troot\t_\t_" for k, word in enumerate(OTHER)]
    for split in ("train", "valid"):
        (tmp_path / f"{split}.conllu").write_text("\n".join(lines) + "\n\n" + "\n".join(lines) + "\n")
    for column, classes in ((None, ("UP0", "UP1")), ("xpos", ("XP0", "XP1", "XP2"))):
        data = [f"data.{split}={tmp_path / split}.conllu" for split in ("train", "valid")]
        chosen = [] if column is None else [f"data.label={column}"]
        words = [f"init_from={encoder}", *data, *QUICK, *ONE_STEP, *chosen, "data.batch_size=2"]
        api.train(api.load_config("glue/tags", words), tmp_path / str(column), device="cpu")
        assert api.open_model(tmp_path / str(column)).config.model.classes == classes


def test_columns_of_texts_are_not_a_setting_of_words(encoder, files):
    with pytest.raises(ConfigError, match=r"data\.texts"):
        finetune(encoder, files, files / "never", "data.texts=sentence")


def test_labels_that_are_not_a_list_are_refused(encoder, files, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"words": ["the", "film"], "tags": "AB"}\n')
    with pytest.raises(DataError, match="'AB', which is not a list of labels"):
        finetune(encoder, files, tmp_path / "run", *ONE_STEP, f"data.train={tmp_path}/rows.jsonl")
