"""Heads on words and spans as classes of transformers."""

import json
import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from glue_toys import GOOD, QUICK, WORDS, sentence, write_encoder, write_tokenizer

from pretrainkit import api
from pretrainkit.errors import InputError
from pretrainkit.recipes.glue.answers import records_of
from whole_runs import assert_exports_are_the_run


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


def test_an_export_is_the_run(tmp_path, transformers):
    """Also where transformers has no place for a layer: that of an encoder in front of a classifier."""
    run = finetuned("tags", write_distilbert(tmp_path / "encoder", transformers), tmp_path)
    assert_exports_are_the_run(run, tmp_path, "glue")


@pytest.mark.parametrize("preset", ["tags", "qa"])
def test_an_export_that_cannot_be_imported_says_so(preset, tmp_path, caplog):
    run = finetuned(preset, write_encoder(tmp_path / "encoder"), tmp_path)
    api.export(run, "huggingface", tmp_path / "export")
    assert "the export cannot be imported again" in caplog.text
    assert_exports_are_the_run(run, tmp_path, "glue", "safetensors", name="whole")


@pytest.mark.parametrize("family", ["bert", "modernbert", "distilbert"])
@pytest.mark.parametrize("preset", ["tags", "qa"])
def test_heads_on_slots_export_with_equal_logits(preset, family, tmp_path, transformers):
    if family == "distilbert":
        encoder = write_distilbert(tmp_path / "encoder", transformers)
    else:
        encoder = write_encoder(tmp_path / "encoder", is_modern=family == "modernbert")
    run = finetuned(preset, encoder, tmp_path)
    api.export(run, "huggingface", tmp_path / "hf")
    kinds = {"tags": transformers.AutoModelForTokenClassification, "qa": transformers.AutoModelForQuestionAnswering}
    theirs, report = kinds[preset].from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    opened = api.open_model(run)
    source = opened.recipe.open_data(opened.config, "valid")
    host = source.build(records_of(source, np.arange(4)))
    batch = {name: torch.from_numpy(array) for name, array in host.items()}
    found = []
    with torch.no_grad():
        (ours,) = opened.model.eval()(batch, 32)
        for begin, end in pairwise(batch["cu_seqlens"].tolist()):
            types = {"token_type_ids": batch["token_type_ids"][None, begin:end].long()} if family == "bert" else {}
            said = theirs.eval()(input_ids=batch["input_ids"][None, begin:end].long(), **types)
            one = said.logits[0] if preset == "tags" else torch.stack([said.start_logits[0], said.end_logits[0]], dim=1)
            found.append(one)
    expected = torch.cat(found)
    expected = expected[batch["word_begins"]] if preset == "tags" else expected
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    if preset == "tags":
        assert theirs.config.id2label == {0: "GOOD", 1: "OTHER"}


def test_what_words_do_not_use_of_the_encoder_stays_as_it_was(tmp_path):
    encoder = write_encoder(tmp_path / "encoder")
    run = finetuned("tags", encoder, tmp_path)
    before, after = (api.load_model(path).state_dict() for path in (encoder, run))
    ours = before["sentence_order.pooler.weight"]
    assert torch.equal(after["encoder.pooler.dense.weight"], ours)


def test_families_without_such_a_class_are_refused(tmp_path, transformers, monkeypatch):
    run = finetuned("tags", write_distilbert(tmp_path / "encoder", transformers), tmp_path)
    monkeypatch.setattr(transformers.models.auto.modeling_auto, "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING", {})
    with pytest.raises(InputError, match="safetensors"):
        api.export(run, "huggingface", tmp_path / "hf")
