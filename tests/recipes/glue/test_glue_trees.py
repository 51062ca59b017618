"""Heads and relations of words: from CoNLL-U to a model that answers."""

import json
import random

import numpy as np
import pytest
import torch
from torch import nn

from pretrainkit import api
from pretrainkit.errors import DataError, InputError
from pretrainkit.recipes.glue.answers import records_of
from pretrainkit.recipes.glue.tree_model import TreeHead, TreeObjective, spans_mean
from support.glue_toys import BAD, GOOD, QUICK, sentence


class Vectors(nn.Module):
    """An encoder whose features are in the batch."""

    width, dropout_rate = 5, 0.0

    def vectors_and_tokens(self, batch, max_length):
        return batch["roots"], batch["slots"]


def test_scores_are_those_of_pairs_of_means_one_by_one():
    torch.manual_seed(0)
    model = TreeHead(Vectors(), 3, 0.0).eval()
    nn.init.normal_(model.head.arc)
    nn.init.normal_(model.head.relation)
    begins, ends, num_words = torch.tensor([1, 2, 5, 8, 10]), torch.tensor([2, 5, 6, 10, 11]), torch.tensor([3, 0, 2])
    batch = {
        "slots": torch.randn(12, 5),
        "roots": torch.randn(3, 5),
        "word_begins": begins,
        "word_ends": ends,
        "num_words": num_words,
        "candidates": torch.arange(4),
        "head": torch.tensor([0, 3, -1, 2, 1]),
    }
    arcs, relations, heads, said = model(batch, 12)
    assert torch.equal(heads, arcs.argmax(1))
    words = [batch["slots"][begin:end].mean(0) for begin, end in zip(begins, ends, strict=True)]
    torch.testing.assert_close(spans_mean(batch["slots"], begins, ends), torch.stack(words))
    one = torch.ones(1)
    for row, (root, own) in enumerate([(0, words[:3])] * 3 + [(2, words[3:])] * 2):
        heads = [batch["roots"][root], *own]
        word = torch.cat([words[row], one])
        expected = torch.stack([word @ model.head.arc @ head for head in heads])
        torch.testing.assert_close(arcs[row, : len(heads)], expected)
        assert torch.isinf(arcs[row, len(heads) :]).all()
        for found, chosen in ((relations, max(0, int(batch["head"][row]))), (said, int(expected.argmax()))):
            by_hand = [word @ weight @ torch.cat([heads[chosen], one]) for weight in model.head.relation]
            torch.testing.assert_close(found[row], torch.stack(by_hand))


def test_weights_of_pairs_start_at_zero_so_that_every_head_is_as_likely():
    model = TreeHead(Vectors(), 3, 0.0)
    nn.init.normal_(model.head.arc)
    model.initialise_head(0.02)
    assert not any(weight.any() for weight in model.head.parameters())
    assert {name: tuple(weight.shape) for name, weight in model.head.named_parameters()} == {
        "arc": (6, 5),
        "relation": (3, 6, 6),
    }


def conllu(rng, num):
    """Words depend on the first good or bad one, which is the root."""
    lines = []
    for _ in range(num):
        words = sentence(rng, rng.random() < 0.5).split()
        root = next(k for k, word in enumerate(words, 1) if word in GOOD + BAD)
        for k, word in enumerate(words, 1):
            head, relation = (0, "root") if k == root else (root, "mark:before" if k < root else "after")
            lines.append(f"{k}\t{word}" + "\t_" * 4 + f"\t{head}\t{relation}\t_\t_")
        lines.append("")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("trees"), random.Random(0)
    for name, num in (("train", 300), ("valid", 30)):
        (folder / f"{name}.conllu").write_text(conllu(rng, num))
    return folder


def finetune(encoder, files, out, *more):
    data = [f"data.{split}={files / split}.conllu" for split in ("train", "valid")]
    config = api.load_config("glue/parse", [f"init_from={encoder}", *data, *QUICK, *more])
    return api.train(config, out, device="cpu")


@pytest.fixture(scope="module")
def finished(encoder, files, tmp_path_factory):
    out = tmp_path_factory.mktemp("parsed") / "run"
    return out, finetune(
        encoder, files, out, "data.num_epochs=5", "evaluate.every_epochs=null", "optimizer.peak_lr=1e-2"
    )


def test_it_learns_where_words_belong(finished):
    metrics = finished[1]
    assert metrics["valid_uas"] >= metrics["valid_las"] == metrics["valid_score"] > 60
    assert api.open_model(finished[0]).config.model.classes == ("after", "mark", "root")


def test_evaluating_trees_again_equals_training(finished):
    metrics = api.evaluate(finished[0], device="cpu")
    assert metrics == {name: finished[1][f"valid_{name}"] for name in metrics}


def test_the_loss_of_the_report_is_that_of_training(finished):
    opened = api.open_model(finished[0])
    source = opened.recipe.open_data(opened.config, "valid")
    host = source.build(records_of(source, np.arange(30)))
    batch = {name: torch.from_numpy(array) for name, array in host.items()}
    with torch.no_grad():
        losses = TreeObjective(opened.config).losses(opened.model.eval(), batch)
    total = sum(float(one.mean()) for one in losses.values())
    assert total == pytest.approx(finished[1]["valid_loss"], rel=1e-4)


def test_answers_name_a_head_for_every_word_that_is_read(finished, tmp_path):
    asked = [["the", "film", "was", "fine", "."], ["the"] * 40]
    (tmp_path / "new.jsonl").write_text("\n".join(json.dumps({"words": words}) for words in asked))
    out = api.predict(finished[0], tmp_path / "out.jsonl", input=tmp_path / "new.jsonl", device="cpu")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [len(line["heads"]) for line in lines] == [5, 40]
    assert all(0 <= head <= 5 for head in lines[0]["heads"])
    assert lines[1]["heads"][30:] == [None] * 10 == lines[1]["relations"][30:]


def is_tree(heads):
    def reaches_root(word):
        seen = set()
        while word and word not in seen:
            seen.add(word)
            word = heads[word - 1]
        return not word

    return heads.count(0) == 1 and all(map(reaches_root, heads))


def test_answers_are_trees_if_requested(finished, files, tmp_path):
    asked = [random.Random(number).choices(GOOD + BAD, k=6) for number in range(12)]
    (tmp_path / "new.jsonl").write_text("\n".join(json.dumps({"words": words}) for words in asked))
    found = {}
    for heads in ("greedy", "tree"):
        out = tmp_path / f"{heads}.jsonl"
        api.predict(finished[0], out, input=tmp_path / "new.jsonl", device="cpu", overrides=[f"data.heads={heads}"])
        found[heads] = [is_tree(json.loads(line)["heads"]) for line in out.read_text().splitlines()]
    assert not all(found["greedy"])
    assert all(found["tree"])
    metrics = api.evaluate(finished[0], device="cpu", overrides=["data.heads=tree"])
    assert metrics["loss"] == finished[1]["valid_loss"]
    assert metrics["uas"] > 60


def test_a_resumed_run_on_trees_ends_like_an_uninterrupted_run(encoder, files, tmp_path):
    settings = ("data.num_epochs=null", "checkpoint.every_steps=2", "schedule.name=constant")
    whole = finetune(encoder, files, tmp_path / "whole", *settings, "num_steps=4")
    finetune(encoder, files, tmp_path / "part", *settings, "num_steps=2")
    resumed = api.resume(tmp_path / "part", ["num_steps=4"], device="cpu")
    names = [name for name in whole if name == "loss" or name.startswith("valid_")]
    assert {name: resumed[name] for name in names} == {name: whole[name] for name in names}


def test_heads_outside_the_sentence_are_refused(encoder, tmp_path):
    for split in ("train", "valid"):
        (tmp_path / f"{split}.conllu").write_text("1\tthe" + "\t_" * 4 + "\t2\troot\t_\t_\n")
    with pytest.raises(DataError, match="heads up to 2"):
        finetune(encoder, tmp_path, tmp_path / "run", "num_steps=1", "data.num_epochs=null")


def test_there_is_no_class_of_transformers_for_it(finished, tmp_path):
    with pytest.raises(InputError, match="safetensors"):
        api.export(finished[0], "huggingface", tmp_path / "hf")


def test_the_old_name_of_greedy_heads_is_still_read():
    assert api.load_config("glue/parse", ["data.heads=likeliest"]).data.heads == "greedy"
