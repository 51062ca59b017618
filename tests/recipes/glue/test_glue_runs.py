"""From an encoder to a fine-tuned, evaluated, exported model that answers."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from glue_toys import QUICK

from pretrainkit import api
from pretrainkit.recipes.glue.answers import records_of


def finetune(task, encoder, glue, out, *more):
    folders = json.dumps({"glue": str(glue)})
    config = api.load_config(f"glue/{task}", [f"init_from={encoder}", f"data.task_folders={folders}", *QUICK, *more])
    return api.train(config, out, device="cpu")


@pytest.fixture(scope="module")
def finished(encoder, glue, tmp_path_factory):
    """A run on the toy SST-2, and its last metrics."""
    out = tmp_path_factory.mktemp("sst2") / "run"
    return out, finetune("sst2", encoder, glue, out, "data.num_epochs=6")


def test_it_learns_what_the_words_say(finished):
    assert finished[1]["valid_accuracy"] > 90


def test_a_fine_tuned_run_needs_neither_encoder_nor_data_to_be_opened(finished):
    opened = api.open_model(finished[0])
    assert opened.config.model.classes == ("negative", "positive")
    assert opened.tokenizer is not None


def test_predictions_are_json_lines_with_probabilities(finished, tmp_path):
    out = api.predict(finished[0], tmp_path / "answers.jsonl", split="test", device="cpu")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(16))
    for line in lines:
        assert line["label"] == max(line["probabilities"], key=line["probabilities"].get)
        assert sum(line["probabilities"].values()) == pytest.approx(1)


def test_the_export_for_transformers_gives_equal_logits(finished, tmp_path, transformers):
    api.export(finished[0], "huggingface", tmp_path / "hf")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    opened = api.open_model(finished[0])
    source = opened.recipe.open_data(opened.config, "valid")
    batch = {name: torch.from_numpy(array) for name, array in source.build(records_of(source, np.arange(6))).items()}
    ends = batch["cu_seqlens"].tolist()
    with torch.no_grad():
        ours = opened.model(batch, 32)
        for row, (begin, end) in enumerate(pairwise(ends)):
            ids = batch["input_ids"][None, begin:end].long()
            types = batch["token_type_ids"][None, begin:end].long()
            logits = theirs(input_ids=ids, token_type_ids=types).logits
            torch.testing.assert_close(logits[0], ours[row], atol=1e-5, rtol=1e-5)
    assert theirs.config.id2label == {0: "negative", 1: "positive"}
    assert tokenizer.mask_token == "[MASK]"
