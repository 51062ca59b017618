"""Runs on tasks and mixtures by name: what trains, what is held out, what is logged."""

import gc
import json

import numpy as np
import pytest

import pretrainkit
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.t5.recipe import RECIPE
from pretrainkit.recipes.t5.source import bind, open_source
from pretrainkit.tasks.preprocessors import keep_if
from pretrainkit.tasks.task import REGISTRY, Mixture, add_mixture, add_task
from support.t5_runs import records, run_of, task_run


@pytest.mark.parametrize("packing", [False, True])
def test_a_mixture_of_the_user_trains_by_its_name(module, tmp_path, packing):
    data = {"train": (), "valid": (), "task": "t5_source_both", "modules": (module,), "packing": packing}
    config = run_of(["", "", ""], data=data | {"input_length": 32, "target_length": 24})
    bound = bind(config)
    assert bound.model.vocab_size == 384
    source = open_source(bound, "train")
    shares = np.bincount(RECIPE.build_order(bound, source).records(np.arange(400)).source) / 400
    np.testing.assert_allclose(shares, [0.75, 0.25])
    batch = source.build(records(2))
    assert bytes((batch["encoder_input_tokens"][0][:13] - 3).astype(np.uint8)) == b"copy: train 0"
    pretrainkit.train(config, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/eval.jsonl").read_text().splitlines()]
    assert 3 < lines[-1]["nll_per_target_token"] < 8
    for name in ("t5_source_copy", "t5_source_shout"):
        assert 3 < lines[-1][f"nll_per_target_token/{name}"] < 8
    with pytest.raises(ConfigError, match="conflicts with data"):
        bind(run_of(["", "", ""], data=data | {"train": "x"}))


def test_tasks_without_the_split_are_left_out_and_none_left_is_an_error(module):
    source = open_source(bind(task_run(module, "t5_source_one_without", held_out_share=None)), "valid")
    assert source.names == ["t5_source_copy"]
    with pytest.raises(DataError, match=r"no task of .* has the split 'validation'\n.*or to null"):
        open_source(bind(task_run(module, "t5_source_no_validation", held_out_share=None)), "valid")
    with pytest.raises(DataError, match="no split 'test'"):
        open_source(bind(task_run(module, "t5_source_copy", train_split="test")), "train")
    with pytest.raises(ConfigError, match="no task of mixture 't5_source_both' has the split 'test'"):
        open_source(bind(task_run(module, "t5_source_both", train_split="test")), "train")


def test_tasks_without_a_split_are_reported_once_at_each_start(module, tmp_path, caplog):
    config = task_run(module, "t5_source_one_without", held_out_share=None)
    lacks_validation = "t5_source_no_validation has no split validation and is not evaluated"
    starts = {
        "train": lambda: pretrainkit.train(config, tmp_path / "run"),
        "check": lambda: pretrainkit.check_data(config),
        "evaluate": lambda: pretrainkit.evaluate(tmp_path / "run"),
    }
    for start, begin in starts.items():
        caplog.clear()
        begin()
        assert caplog.text.count("has no split") == caplog.text.count(lacks_validation) == 1, start
    caplog.clear()
    pretrainkit.train(task_run(module, "t5_source_one_unlearned"), tmp_path / "other")
    lacks_training = "t5_source_no_training has no split train and is left out"
    assert caplog.text.count("has no split") == caplog.text.count(lacks_training) == 1


def test_a_task_without_any_example_is_named(module):
    names = ("t5_source_copy", "t5_source_emptied")
    add_task(REGISTRY.get_task(names[0]).replace(name=names[1], preprocessors=[keep_if(lambda row: False)]))
    add_mixture(Mixture("t5_source_half_empty", names, default_rate=1))
    try:
        for split in ("train", "valid"):
            with pytest.raises(DataError, match=r"task 't5_source_emptied' has no examples in '(train|validation)'"):
                open_source(bind(task_run(module, "t5_source_half_empty")), split)
    finally:
        for name in ("t5_source_half_empty", names[1]):
            REGISTRY.remove(name)


def test_a_task_without_held_out_examples_gets_some_that_are_not_trained_on(module, tmp_path):
    config = bind(task_run(module, "t5_source_no_validation"))
    train, valid = (open_source(config, split) for split in ("train", "valid"))
    whole = open_source(bind(task_run(module, "t5_source_no_validation", valid_split=None)), "train")
    assert valid.names == train.names == ["t5_source_no_validation"]
    (num_train,), (num_valid,), (num_whole,) = (source.sizes for source in (train, valid, whole))
    assert num_train + num_valid == num_whole
    assert num_valid >= min(10, num_whole // 10)
    pretrainkit.train(task_run(module, "t5_source_no_validation"), tmp_path / "run")
    last = json.loads((tmp_path / "run/eval.jsonl").read_text().splitlines()[-1])
    later = pretrainkit.evaluate(tmp_path / "run")
    assert later["nll_per_target_token"] == pytest.approx(last["nll_per_target_token"], rel=1e-6)
    with pytest.raises(DataError, match="has the split 'test'"):  # cut off in training only under the usual name
        open_source(bind(task_run(module, "t5_source_no_validation", valid_split="test")), "valid")


def test_a_task_of_training_examples_alone_trains_without_an_evaluation(module, tmp_path):
    pretrainkit.train(task_run(module, "t5_source_no_validation", valid_split=None), tmp_path / "run")
    assert not (tmp_path / "run/eval.jsonl").exists()


def test_held_out_shards_come_in_place_of_the_task_of_a_run(module, folders, tmp_path):
    pretrainkit.train(task_run(module, "t5_source_both"), tmp_path / "run")
    found = pretrainkit.evaluate(tmp_path / "run", folders[2], num_examples=8)
    assert "nll_per_target_token" in found
    assert not [name for name in found if "t5_source" in name]
    for words in ([f"data.valid={folders[2]}"], ["data.task=null", f"data.valid={folders[2]}"]):
        assert pretrainkit.evaluate(tmp_path / "run", None, words, num_examples=8) == found
    with pytest.raises(ConfigError, match=r"data\.valid=.* and data\.task=.* both define the held-out data"):
        pretrainkit.evaluate(tmp_path / "run", None, ["data.task=t5_source_copy", f"data.valid={folders[2]}"])
    with pytest.raises(ConfigError, match="both define the held-out data"):
        pretrainkit.evaluate(tmp_path / "run", folders[2], ["data.task=t5_source_copy"])
    assert pretrainkit.evaluate(tmp_path / "run", None, ["data.task=t5_source_copy"])


def test_losses_of_tasks_are_logged_where_they_are_drawn(module, tmp_path):
    config = task_run(module, "t5_source_with_idle", log={"every_steps": 1})
    pretrainkit.train(config, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    for line in lines:
        mean = line["loss/t5_source_copy"] * line["target_tokens/t5_source_copy"]
        assert mean > 0
        assert "loss/t5_source_shout" not in line
    counts = [line["target_tokens/t5_source_copy"] for line in lines]
    assert counts == sorted(counts)
    assert len(set(counts)) == 4


def test_the_temporary_shards_of_a_killed_process_are_removed(module, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    left = tmp_path / "temporary/.pretrainkit-documents-0123abcd"
    left.mkdir(parents=True)
    config = task_run(module, "t5_source_pairs", input_length=16, target_length=16, batch_size=4, valid_split=None)
    source = open_source(bind(config), "train")
    (folder,) = left.parent.iterdir()
    assert folder != left
    assert folder.stat().st_mode & 0o77 == 0
    del source
    gc.collect()
    assert not any(left.parent.iterdir())


def test_tasks_of_pairs_lay_two_texts_into_each_row(module, tmp_path):
    config = task_run(module, "t5_source_pairs", input_length=16, target_length=16, batch_size=4)
    source = open_source(bind(config), "train")
    size = source.sizes[0]
    batch = source.build(records(size))
    texts = [f"train {number}".encode() + b"\x01" for number in range(40)]
    everything = b"".join(texts)
    assert size == -(-len(everything) // 32)
    full = slice(0, size - 1)
    for side in ("encoder", "decoder"):
        assert batch[f"{side}_segment_ids"].shape == (size, 16)
        assert (batch[f"{side}_segment_ids"][full] > 0).all()
        assert set(batch[f"{side}_segment_ids"][full].ravel().tolist()) == {1, 2}
    restored = b""
    for row in range(size):
        for number in (1, 2):
            for side, name in (("encoder", "input"), ("decoder", "target")):
                ids = batch[f"{side}_{name}_tokens"][row][batch[f"{side}_segment_ids"][row] == number]
                restored += bytes(1 if one == 1 else one - 3 for one in ids.tolist())
    assert restored == everything
    assert batch["num_examples"] == size
    pretrainkit.train(config, tmp_path / "run")
    mixed = task_run(module, "t5_source_pairs_and_others", input_length=16, target_length=16, valid_split=None)
    with pytest.raises(ConfigError, match="t5_source_pairs"):
        bind(mixed)
