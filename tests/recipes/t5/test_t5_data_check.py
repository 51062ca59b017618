"""`data check` of a T5 config: figures that follow from the data, notes on what may not be meant, first examples."""

import re

import numpy as np
import pytest

import pretrainkit
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.t5 import data_check
from pretrainkit.recipes.t5.features import num_packed_rows
from pretrainkit.recipes.t5.source import bind, open_source
from pretrainkit.tasks.cache_writer import cache_task
from pretrainkit.tasks.task import REGISTRY
from pretrainkit.tasks.user_modules import import_modules
from support.t5_runs import records, run_of, task_run


def test_the_check_of_token_shards_reports_plans_sentinels_rows_and_the_first_loss(folders):
    config = run_of(folders, data={"train": f"{folders[0]},{folders[1]}"})
    found = pretrainkit.check_data(config, num=2)
    sizes = open_source(bind(config), "train").sizes
    assert found.figures["training examples"] == sum(sizes)
    assert found.figures["sentinels"] == "100, the first is id 299"
    assert (
        "70 tokens of text make inputs of up to 64 and targets of about 14 of 18, up to 3" in found.figures["lengths"]
    )
    assert found.figures["first loss expected"].startswith(f"{np.log(384) + 0.5:.2f} nats")
    assert "4 steps of 8 examples" in found.figures["training"]
    assert [example["example"].split()[0] for example in found.examples] == ["0-random_spans-3-0.15"] * 2 + [
        "1-random_spans-3-0.15"
    ] * 2
    first = found.examples[0]
    assert first["inputs"].startswith("[64] ")
    assert "decoder_loss_weights" in first["first row"]
    assert found.notes == []


def test_the_check_of_tasks_reports_what_is_cut_and_not_cached(module):
    found = pretrainkit.check_data(task_run(module, "t5_source_both", input_length=12), num=1)
    assert found.figures["caches"] == "0 of 2 tasks"
    assert not any("cache" in note for note in found.notes)
    assert found.figures["vocabulary"].startswith("ByteVocabulary of 259")
    assert "t5_source_copy" in found.figures["mixture"]
    cut = next(note for note in found.notes if "inputs of t5_source_shout" in note)
    assert cut.startswith("40 of 40 inputs")
    assert "longest has 16 tokens" in cut
    assert found.examples[0]["inputs"].startswith("'copy: train")
    assert re.fullmatch(r"copy: train \d+", found.examples[0]["inputs_pretokenized"])


def test_a_large_task_without_a_cache_is_reported(module, tmp_path, monkeypatch):
    monkeypatch.setattr(data_check, "_LARGE", 40)
    config = task_run(module, "t5_source_marked")
    assert any("t5_source_marked: large and without a cache" in note for note in pretrainkit.check_data(config).notes)
    import_modules([module])
    cache_task(REGISTRY.get_task("t5_source_marked"), tmp_path, workers=1)
    found = pretrainkit.check_data(task_run(module, "t5_source_marked", caches=(str(tmp_path),)))
    assert found.figures["caches"] == "1 of 1 tasks"
    assert not any("cache" in note for note in found.notes)


def test_short_examples_are_worth_packing_and_packed_ones_have_their_rows_counted(module):
    loose = pretrainkit.check_data(task_run(module, "t5_source_both", input_length=128, target_length=128))
    assert any("data.packing=true" in note for note in loose.notes)
    config = task_run(module, "t5_source_both", input_length=128, target_length=128, packing=True)
    packed = pretrainkit.check_data(config)
    assert not any("data.packing=true" in note for note in packed.notes)
    assert packed.figures["packed rows"].startswith("1 to 1 for")


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only"])
def test_rows_are_counted_as_they_are_laid_out(folders, kind):
    layers = {"kind": kind, "num_decoder_layers": 1, "num_encoder_layers": 1 if kind == "encoder_decoder" else None}
    data = {"target_length": 64, "denoising": {"name": "prefix_lm"}, "packing": True}
    config = bind(run_of(folders, model=layers, data=data))
    source = open_source(config, "train")
    batch = source.build(records(8))
    assert num_packed_rows(config, *source.examples(records(8))) == len(batch["decoder_target_tokens"])


def test_examples_that_do_not_fit_are_an_error_as_in_training(folders):
    with pytest.raises(ConfigError, match=r"data\.target_length=14"):
        pretrainkit.check_data(run_of(folders, data={"target_length": 13}))
