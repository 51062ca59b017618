"""Held-out examples in the report."""

from types import SimpleNamespace

import numpy as np
import torch

from pretrainkit.recipes.t5.config import T5DataConfig, T5ModelConfig, T5Run
from pretrainkit.recipes.t5.denoising import TextIds
from pretrainkit.recipes.t5.evaluation import readable
from pretrainkit.recipes.t5.predictor import Predictor
from pretrainkit.recipes.t5.recipe import RECIPE
from pretrainkit.recipes.t5.source import bind
from pretrainkit.recipes.t5.task_source import TaskBatches
from pretrainkit.tasks.preprocessors import append_eos, tokenize
from pretrainkit.tasks.sources import FunctionSource
from pretrainkit.tasks.task import Feature, Task
from pretrainkit.tasks.vocabulary import ByteVocabulary
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.special import SpecialIds
from pretrainkit.training.optimizers.config import OptimizerConfig

WORDS = SimpleNamespace(vocab_size=50, readable=lambda ids: " ".join(f"w{index}" for index in ids))
SPECIAL = SpecialIds(unk=2, cls=3, sep=1, mask=4, pad=0)


def test_sentinels_have_names_and_ends_are_left_out():
    ids = TextIds(end=1, sentinels=(52, 51, 50), text_size=50, modes={})
    assert readable([7, 8, 52, 9, 51, 1], WORDS, ids) == "w7 w8 <extra_id_0> w9 <extra_id_1>"
    assert readable([60, 5], WORDS, ids) == "? w5"


def test_samples_show_the_input_and_the_truth(tmp_path, monkeypatch):
    write_shards(tmp_path / "s", [[[np.arange(5, 45)] * 5]], vocab_size=50, special=SPECIAL)
    (tmp_path / "s/tokenizer").mkdir()
    pieces = SimpleNamespace(**vars(WORDS), pieces=lambda: [str(index) for index in range(50)])
    for module in ("source", "evaluation"):
        monkeypatch.setattr(f"pretrainkit.recipes.t5.{module}.load_tokenizer", lambda folder: pieces)
    shape = {"hidden_size": 16, "num_heads": 2, "head_size": 8, "intermediate_size": 16}
    config = T5Run(
        num_steps=1,
        model=T5ModelConfig(**shape, num_encoder_layers=1, num_decoder_layers=1),
        data=T5DataConfig(train=str(tmp_path / "s"), batch_size=2, input_length=32, target_length=8),
        optimizer=OptimizerConfig(name="adafactor", peak_lr=0.01, max_grad_norm=0.0),
    )
    config = bind(config)
    torch.manual_seed(0)
    model = RECIPE.build_model(config)
    (first, *_) = found = RECIPE.sample(config, model, RECIPE.open_data(config, "train"), num=3)
    assert len(found) == 3
    assert first["masked"].startswith("w5 ")
    assert first["truth"].startswith("<extra_id_0> w")
    words = [word for key in ("masked", "truth") for word in first[key].split() if word.startswith("w")]
    assert sorted(words) == sorted(f"w{index}" for index in range(5, 39))
    assert model.training


def test_samples_of_tasks_show_whole_answers_of_several_tasks():
    torch.manual_seed(0)
    feature = Feature(ByteVocabulary())
    registered = [
        Task(
            name=name,
            source=FunctionSource(rows, ("train", "validation")),
            features={"inputs": feature, "targets": feature},
            preprocessors=[tokenize(), append_eos],
        )
        for name in ("shown:one", "shown:two")
    ]
    shape = {"hidden_size": 16, "num_heads": 2, "head_size": 8, "intermediate_size": 16}
    config = T5Run(
        num_steps=1,
        model=T5ModelConfig(**shape, num_encoder_layers=1, num_decoder_layers=1, vocab_size=384),
        data=T5DataConfig(task="shown:one", batch_size=2, input_length=32, target_length=8),
        optimizer=OptimizerConfig(name="adafactor", peak_lr=0.01, max_grad_norm=0.0),
    )
    bound = [task.bind("validation") for task in registered]
    model = RECIPE.build_model(config)
    found = RECIPE.sample(config, model, TaskBatches(config, "valid", bound, (1.0, 1.0), "x"), num=5)
    assert [one["task"] for one in found] == ["shown:one"] * 3 + ["shown:two"] * 2
    assert found[0]["input"] == "count to 0"
    assert found[1]["truth"] == "1 2 3 4"
    (answer,) = Predictor(config, model).predict([bound[0].example(4)])
    assert found[1]["predicted"] == ByteVocabulary().decode(answer)


def rows(split):
    return [
        {"inputs": f"count to {number}", "targets": " ".join(map(str, range(1, number + 1)))} for number in range(9)
    ]
