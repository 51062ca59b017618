"""Encoders of other recipes, and of transformers' other architecture."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from pretrainkit import api
from pretrainkit.errors import CheckpointError
from pretrainkit.exporting.native import write_native
from pretrainkit.recipes.bert.inputs import read_texts
from pretrainkit.recipes.glue.answers import records_of
from pretrainkit.recipes.t5.config import T5DataConfig, T5ModelConfig, T5Run
from pretrainkit.recipes.t5.model import T5TextEncoder, build
from pretrainkit.training.optimizers.config import OptimizerConfig
from support.glue_toys import QUICK, write_encoder, write_tokenizer
from support.whole_runs import assert_exports_are_the_run

pytestmark = pytest.mark.slow


def finetuned(encoder, glue, out, *more):
    folders = json.dumps({"glue": str(glue)})
    words = [f"init_from={encoder}", f"data.task_folders={folders}", *QUICK, "num_steps=2", "data.num_epochs=null"]
    metrics = api.train(api.load_config("glue/mrpc", [*words, *more]), out, device="cpu")
    return metrics, api.open_model(out)


def first_batch(opened, num):
    source = opened.recipe.open_data(opened.config, "valid")
    batch = source.build(records_of(source, np.arange(num)))
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def logits_by_transformers(theirs, batch, *, has_types):
    ends, found = batch["cu_seqlens"].tolist(), []
    for begin, end in pairwise(ends):
        types = {"token_type_ids": batch["token_type_ids"][None, begin:end].long()} if has_types else {}
        found.append(theirs(input_ids=batch["input_ids"][None, begin:end].long(), **types).logits[0])
    return torch.stack(found)


@pytest.mark.parametrize("is_modern", [False, True])
def test_encoders_without_sentence_order_export_with_equal_logits(is_modern, glue, tmp_path, transformers):
    encoder = write_encoder(tmp_path / "encoder", is_modern=is_modern, has_sentence_order=False)
    _, opened = finetuned(encoder, glue, tmp_path / "run")
    api.export(tmp_path / "run", "huggingface", tmp_path / "hf")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    batch = first_batch(opened, 4)
    with torch.no_grad():
        expected = logits_by_transformers(theirs, batch, has_types=not is_modern)
        torch.testing.assert_close(opened.model(batch, 32)[0], expected, atol=1e-5, rtol=1e-5)


@pytest.fixture
def t5(tmp_path):
    words = write_tokenizer(tmp_path / "words")
    text = (words / "tokenizer.json").read_text()
    for role, piece in (("PAD", "<pad>"), ("UNK", "<unk>"), ("SEP", "</s>")):
        text = text.replace(f"[{role}]", piece)
    (words / "tokenizer.json").write_text(text)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_heads": 2, "head_size": 8, "intermediate_size": 16, "vocab_size": 160}
    config = T5Run(
        num_steps=1,
        model=T5ModelConfig(num_encoder_layers=2, num_decoder_layers=1, **shape),
        data=T5DataConfig(batch_size=8),
        optimizer=OptimizerConfig(name="adafactor", peak_lr=0.01, max_grad_norm=0.0),
    )
    write_native(config, build(config.model), words, tmp_path / "t5")
    return tmp_path / "t5"


def test_the_encoder_of_a_t5_is_fine_tuned(t5, glue, tmp_path):
    metrics, opened = finetuned(t5, glue, tmp_path / "run")
    assert np.isfinite(metrics["valid_loss"])
    assert isinstance(opened.model.encoder, T5TextEncoder)
    assert not any("decoder" in name for name in opened.model.state_dict())


def test_the_export_of_a_t5_is_an_encoder_of_transformers_with_a_head_beside_it(t5, glue, tmp_path, transformers):
    from safetensors.torch import load_file

    _, opened = finetuned(t5, glue, tmp_path / "run")
    api.export(tmp_path / "run", "huggingface", tmp_path / "hf")
    theirs = transformers.T5EncoderModel.from_pretrained(tmp_path / "hf").eval()
    head, batch = load_file(tmp_path / "hf" / "classifier.safetensors"), first_batch(opened, 4)
    with torch.no_grad():
        ours = opened.model(batch, 32)[0]
        for number, (begin, end) in enumerate(pairwise(batch["cu_seqlens"].tolist())):
            states = theirs(input_ids=batch["input_ids"][None, begin:end].long()).last_hidden_state[0]
            expected = head["weight"] @ states.mean(0) + head["bias"]
            torch.testing.assert_close(ours[number], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "format"),
    [
        *(("bert", "huggingface"), ("modernbert", "huggingface"), ("t5", "huggingface")),
        *(("bert", "safetensors"), ("t5", "safetensors")),
    ],
)
def test_an_export_is_the_run(family, format, glue, tmp_path, request):
    if family == "t5":
        encoder = request.getfixturevalue("t5")
    else:
        encoder = write_encoder(tmp_path / "encoder", is_modern=family == "modernbert")
    finetuned(encoder, glue, tmp_path / "run", "data.max_seq_length=20", "model.dropout=0.2")
    assert_exports_are_the_run(tmp_path / "run", tmp_path, "glue", format)


@pytest.mark.parametrize("task", ["stsb", "sst2", "mnli"])
def test_an_export_of_another_kind_of_task_is_the_run(task, glue, tmp_path):
    """Scores, single texts, several held-out sets."""
    folders = json.dumps({"glue": str(glue)})
    encoder = write_encoder(tmp_path / "encoder")
    words = [f"init_from={encoder}", f"data.task_folders={folders}", *QUICK, "num_steps=2", "data.num_epochs=null"]
    api.train(api.load_config(f"glue/{task}", words), tmp_path / "run", device="cpu")
    assert_exports_are_the_run(tmp_path / "run", tmp_path, "glue")
    api.export(tmp_path / "run", "huggingface", tmp_path / "hf")
    # The CrossEncoder of sentence-transformers reads from it that a score has no sigmoid.
    values = json.loads((tmp_path / "hf/config.json").read_bytes())
    identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
    assert values.get("sentence_transformers") == (identity if task == "stsb" else None)


def test_examples_of_a_t5_do_not_see_each_other(t5, glue, tmp_path):
    _, opened = finetuned(t5, glue, tmp_path / "run")
    together = first_batch(opened, 3)
    with torch.no_grad():
        torch.testing.assert_close(opened.model(together, 32)[0][:1], opened.model(first_batch(opened, 1), 32)[0])


def test_a_config_that_describes_another_encoder_is_refused(glue, tmp_path):
    finetuned(write_encoder(tmp_path / "encoder"), glue, tmp_path / "run")
    other = write_encoder(tmp_path / "modern", is_modern=True)
    config = api.load_config(tmp_path / "run" / "config.yaml", [f"init_from={other}"])
    with pytest.raises(CheckpointError, match="another model"):
        api.train(config, tmp_path / "again", device="cpu")


@pytest.mark.parametrize("is_modern", [False, True])
def test_before_training_the_encoder_has_its_pretrained_outputs(is_modern, glue, tmp_path):
    path = write_encoder(tmp_path / "encoder", is_modern=is_modern)
    _, opened = finetuned(path, glue, tmp_path / "run", "optimizer.peak_lr=1e-12")
    batch, source = first_batch(opened, 4), api.open_model(path).model
    inputs = read_texts(batch, 32, batch["cu_seqlens"][:-1].long())
    with torch.no_grad():
        expected = source.encode(inputs)[-1]
        torch.testing.assert_close(opened.model.encoder.tokens(batch, 32), expected, atol=1e-6, rtol=0)
        if not is_modern:
            pooled = torch.tanh(source.sentence_order.pooler(expected[inputs.first_B]))
            torch.testing.assert_close(opened.model.encoder(batch, 32), pooled, atol=1e-6, rtol=0)
