"""Heads on words and spans as classes of transformers."""

import json
import random
import re
from itertools import pairwise

import numpy as np
import pytest
import torch

from pretrainkit import api
from pretrainkit.errors import CheckpointError, InputError
from pretrainkit.recipes.glue.answers import records_of
from pretrainkit.recipes.registry import find_recipe
from support.glue_toys import GOOD, QUICK, WORDS, sentence, write_encoder, write_tokenizer
from support.page_data import part
from support.remedies import followed
from support.whole_runs import assert_exports_are_the_run

pytestmark = pytest.mark.slow


def write_tags(path):
    rng = random.Random(0)
    rows = [sentence(rng, number % 2 == 0).split() for number in range(32)]
    tags = [["GOOD" if word in GOOD else "OTHER" for word in words] for words in rows]
    path.write_text("\n".join(json.dumps({"words": a, "tags": b}) for a, b in zip(rows, tags, strict=True)))


def write_questions(path):
    rng, rows = random.Random(0), []
    for number in range(32):
        words = sentence(rng, True).split()
        begin = sum(len(word) + 1 for word in words[: len(words) // 2])
        answers = {"text": [words[len(words) // 2]], "answer_start": [begin]}
        rows.append({"question": "the film", "context": " ".join(words), "answers": answers, "id": str(number)})
    path.write_text("\n".join(map(json.dumps, rows)))


def finetuned(preset, encoder, folder):
    (write_tags if preset == "tags" else write_questions)(folder / "rows.jsonl")
    data = [f"data.train={folder}/rows.jsonl", f"data.valid={folder}/rows.jsonl"]
    words = [f"init_from={encoder}", *data, *QUICK, "num_steps=1", "data.num_epochs=null"]
    windows = ["data.spans.stride=4"] if preset == "qa" else []
    api.train(api.load_config(f"glue/{preset}", [*words, *windows]), folder / "run", device="cpu")
    return folder / "run"


def write_distilbert(folder, transformers):
    config = transformers.DistilBertConfig(vocab_size=len(WORDS), dim=16, n_layers=1, n_heads=2, hidden_dim=16)
    transformers.DistilBertModel(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def encoder_of(family, folder, transformers):
    if family == "distilbert":
        return write_distilbert(folder, transformers)
    return write_encoder(folder, is_modern=family == "modernbert")


@pytest.mark.parametrize(
    ("family", "preset"),
    [
        *(("bert", "tags"), ("bert", "qa"), ("modernbert", "tags"), ("modernbert", "qa")),
        *(("distilbert", "tags"), ("distilbert", "qa")),
    ],
)
def test_an_export_is_the_run(family, preset, tmp_path, transformers, caplog):
    """It also holds if transformers has no place for a layer: that of an encoder in front of a classifier, and its
    pooler."""
    run = finetuned(preset, encoder_of(family, tmp_path / "encoder", transformers), tmp_path)
    assert_exports_are_the_run(run, tmp_path, "glue")
    assert "cannot be imported" not in caplog.text
    assert "not used" not in caplog.text


SIZES = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
DISTILBERT = {"vocab_size": len(WORDS), "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}


@pytest.mark.parametrize("name", ["Bert", "DistilBert", "Electra"])
@pytest.mark.parametrize("head", ["TokenClassification", "QuestionAnswering"])
def test_heads_that_transformers_saved_are_read(name, head, tmp_path, transformers, caplog):
    """No file of ours is needed: names of classes and logits are theirs, and the folder can be trained further."""
    labels = {"id2label": {0: "GOOD", 1: "OTHER"}} if head == "TokenClassification" else {}
    sizes = DISTILBERT if name == "DistilBert" else {**SIZES, "intermediate_size": 16}
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes, **labels, pad_token_id=0)
    theirs = getattr(transformers, f"{name}For{head}")(config).eval()
    theirs.save_pretrained(tmp_path / "saved")
    write_tokenizer(tmp_path / "saved")
    preset = "tags" if labels else "qa"
    (write_tags if labels else write_questions)(tmp_path / "rows.jsonl")
    windows = [] if labels else ["data.spans.stride=4"]
    imported = api.import_model(tmp_path / "saved", "glue", tmp_path / "imported")
    assert "not used" not in caplog.text
    rows = [f"data.train={tmp_path}/rows.jsonl", f"data.valid={tmp_path}/rows.jsonl"]
    settings = [*rows, *QUICK, *windows, "num_steps=1", "data.num_epochs=null", "optimizer.peak_lr=1e-12"]
    for path in (imported, tmp_path / "saved"):
        run = tmp_path / f"on-{path.name}"
        api.train(api.load_config(f"glue/{preset}", [*settings, f"init_from={path}"]), run, device="cpu")
        opened = api.open_model(run)
        assert opened.config.model.classes == tuple(labels.get("id2label", {}).values())
        assert_equal_logits(opened, theirs, preset, has_types=name != "DistilBert")


@pytest.mark.parametrize("family", ["bert", "modernbert", "distilbert"])
@pytest.mark.parametrize("preset", ["tags", "qa"])
def test_heads_on_slots_export_with_equal_logits(preset, family, tmp_path, transformers):
    run = finetuned(preset, encoder_of(family, tmp_path / "encoder", transformers), tmp_path)
    api.export(run, "huggingface", tmp_path / "hf")
    kinds = {"tags": transformers.AutoModelForTokenClassification, "qa": transformers.AutoModelForQuestionAnswering}
    theirs, report = kinds[preset].from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert_equal_logits(api.open_model(run), theirs.eval(), preset, has_types=family == "bert")
    if preset == "tags":
        assert theirs.config.id2label == {0: "GOOD", 1: "OTHER"}


@torch.no_grad()
def assert_equal_logits(opened, theirs, preset, *, has_types):
    source = opened.recipe.open_data(opened.config, "valid")
    host = source.build(records_of(source, np.arange(4)))
    batch = {name: torch.from_numpy(array) for name, array in host.items()}
    found = []
    (ours,) = opened.model.eval()(batch, 32)
    for begin, end in pairwise(batch["cu_seqlens"].tolist()):
        types = {"token_type_ids": batch["token_type_ids"][None, begin:end].long()} if has_types else {}
        said = theirs(input_ids=batch["input_ids"][None, begin:end].long(), **types)
        one = said.logits[0] if preset == "tags" else torch.stack([said.start_logits[0], said.end_logits[0]], dim=1)
        found.append(one)
    expected = torch.cat(found)
    expected = expected[batch["word_begins"]] if preset == "tags" else expected
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("preset", ["tags", "qa"])
def test_heads_of_a_t5_on_slots_are_not_exported_as_a_classifier_of_texts(preset, tmp_path):
    run = finetuned(preset, part("t5"), tmp_path)
    with pytest.raises(InputError) as error:
        api.export(run, "huggingface", tmp_path / "hf")
    advice = followed(error.value, "recipes/t5/convert.py: a T5 with a head on …")
    assert not (tmp_path / "hf").exists()
    api.export(run, advice.split()[-1], tmp_path / "native")
    assert api.open_model(tmp_path / "native").config.data.kind == api.open_model(run).config.data.kind


def test_a_head_of_several_layers_is_refused_and_its_encoder_is_read_as_advised(tmp_path, transformers):
    run = finetuned("tags", write_encoder(tmp_path / "encoder", is_modern=True), tmp_path)
    api.export(run, "huggingface", tmp_path / "hf")
    (tmp_path / "hf" / "pretrainkit.json").unlink()
    rows = [f"data.train={tmp_path}/rows.jsonl", "num_steps=1", "data.num_epochs=null", *QUICK]
    settings = [*rows, "optimizer.peak_lr=1e-12", f"init_from={tmp_path}/hf", "init.recipe=huggingface"]
    with pytest.raises(CheckpointError, match="not one linear layer") as caught:
        find_recipe("huggingface").import_text_classifier(tmp_path / "hf")
    advice = followed(caught.value, "recipes/huggingface/convert.py: the head of …, a …, is not")
    assert advice.endswith(settings[-1])
    api.train(api.load_config("glue/tags", settings), tmp_path / "on", device="cpu")
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "hf").state_dict()
    ours = api.load_model(tmp_path / "on").state_dict()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[f"encoder.model.model.{name}"], tensor, atol=1e-6, rtol=0)


def test_parts_of_the_encoder_that_words_do_not_use_are_unchanged(tmp_path):
    encoder = write_encoder(tmp_path / "encoder")
    run = finetuned("tags", encoder, tmp_path)
    before, after = (api.load_model(path).state_dict() for path in (encoder, run))
    ours = before["sentence_order.pooler.weight"]
    assert torch.equal(after["encoder.pooler.dense.weight"], ours)


def test_families_without_such_a_class_are_refused(tmp_path, transformers, monkeypatch):
    run = finetuned("tags", write_distilbert(tmp_path / "encoder", transformers), tmp_path)
    monkeypatch.setattr(transformers.models.auto.modeling_auto, "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING", {})
    with pytest.raises(InputError) as error:
        api.export(run, "huggingface", tmp_path / "hf")
    advice = followed(error.value, "recipes/huggingface/convert.py: a … with a head on … cannot be exported")
    api.export(run, re.search(r"--format (\w+)", advice)[1], tmp_path / "ours")
    assert api.open_model(tmp_path / "ours").config.recipe == "glue"
