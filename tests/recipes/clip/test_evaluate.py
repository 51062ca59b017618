"""Held-out metrics are exact: every row once, whatever the number of ranks, and nothing of the model changes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from pretrainkit.dist.env import World
from pretrainkit.eval.evaluator import embed_rows
from pretrainkit.eval.retrieval import Rows, retrieval
from pretrainkit.recipes.clip.config import ClassificationConfig, ClipEvaluateConfig, class_set_name
from pretrainkit.recipes.clip.held_out import held_out_metrics
from support import evaluate_ranks
from support.toy_held_out import ToyEncoder, toy_classes, toy_pairs
from support.two_processes import run_ranks

CONFIG = ClipEvaluateConfig(batch_size=7, ranks=True)


def metrics_of(model, config=CONFIG, pairs=None, classes=None, **options):
    pairs, classes = pairs or [toy_pairs()], classes or [toy_classes()]
    return held_out_metrics(model, pairs, classes, config, world=World(), **options)


def test_metrics_are_those_of_all_embeddings_at_once():
    model, pairs = ToyEncoder().eval(), toy_pairs()
    with torch.no_grad():
        everything = np.arange(len(pairs.image_ids_N))
        image = model(torch.from_numpy(pairs.images(everything)["image"]))["image"]
        text = model(**{name: torch.from_numpy(a) for name, a in pairs.captions(everything).items()})["text"]
    slow = retrieval(Rows(image, pairs.image_ids_N), Rows(text, pairs.image_ids_N), with_ranks=True)
    found = metrics_of(ToyEncoder())
    assert {name: found[f"toy_{name}"] for name in slow} == slow
    assert found["RSUM"] == found["toy_RSUM"]
    assert found["temperature"] == pytest.approx(np.exp(-3), rel=1e-6)
    assert 0 <= found["things_zeroshot_acc1"] <= found["things_zeroshot_acc5"] <= 100


def test_each_image_and_each_caption_is_embedded_once_in_evaluation_mode():
    model, pairs, classes = ToyEncoder().train(), toy_pairs(), toy_classes()
    model.text.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    metrics_of(model)
    assert model.num_images == len(set(pairs.image_ids_N.tolist())) + len(classes.labels_I)
    assert model.num_captions == len(pairs.image_ids_N) + 18
    assert model.modes == {False}
    assert model.training
    assert not model.text.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_threads_and_chunks_of_scores_change_nothing():
    alone = metrics_of(ToyEncoder())
    assert metrics_of(ToyEncoder(), num_threads=2) == alone
    assert metrics_of(ToyEncoder(), ClipEvaluateConfig(batch_size=7, ranks=True, scores_megabytes=1)) == alone


def test_rows_and_captions_per_image_can_be_limited():
    pairs = toy_pairs()
    model = ToyEncoder()
    metrics_of(model, ClipEvaluateConfig(max_captions_per_image=2), classes=[toy_classes()])
    counts = np.unique(pairs.image_ids_N, return_counts=True)[1]
    assert model.num_captions == np.minimum(counts, 2).sum() + 18
    model = ToyEncoder()
    metrics_of(model, ClipEvaluateConfig(num_examples=10), classes=[toy_classes()])
    assert model.num_captions == 10 + 18
    assert model.num_images == len(set(pairs.image_ids_N[:10].tolist())) + 31


def test_several_sets_have_names_of_their_own_and_a_mean():
    found = metrics_of(ToyEncoder(), pairs=[toy_pairs(name="one"), toy_pairs(seed=3, name="two")])
    assert found["RSUM"] == (found["one_RSUM"] + found["two_RSUM"]) / 2
    assert found["one_RSUM"] != found["two_RSUM"]


@pytest.mark.parametrize(("strategy", "num"), [("ddp", 2), ("fsdp2", 3)])
def test_fact_39_metrics_are_the_same_on_any_number_of_ranks(tmp_path, strategy, num):
    alone = metrics_of(ToyEncoder())
    run_ranks(num, Path(evaluate_ranks.__file__), str(tmp_path), strategy)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(num)]
    for one in found:
        assert one["metrics"] == alone
    passes = [one["counted"][0] for one in found]
    assert len(set(passes)) == 1, "FSDP2 needs equally many forward passes on all ranks"


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 9])
def test_batches_hold_the_same_rows_on_any_number_of_ranks(world_size):
    parts = []
    for rank in range(world_size):
        world = OneOf(rank=rank, world_size=world_size)
        sums = []

        def forward(batch, sums=sums):
            sums.append(batch["x"].sum())
            return batch["x"] * batch["x"].sum()  # depends on the company a row keeps

        build = lambda rows: {"x": (rows[:, None] + 1).astype(np.float32)}  # noqa: E731
        parts.append(embed_rows(build, forward, 20, batch_size=6, world=world))
        assert len(sums) == -(-4 // world_size)
    company = [sum(range(start + 1, min(start + 6, 20) + 1)) for start in (0, 6, 12, 18)]
    assert sum(parts)[:, 0].tolist() == [(i + 1) * company[i // 6] for i in range(20)]


class OneOf(World):
    """A rank whose sums with the others are added up by the test."""

    def all_reduce_(self, tensor, op="sum"):
        return tensor


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"path": "images/flowers/valid"}, "flowers"),
        ({"path": "/data/flowers/"}, "flowers"),
        ({"path": "val"}, "val"),
        ({"path": "images/flowers/valid", "name": "blooms"}, "blooms"),
    ],
)
def test_class_folders_are_not_named_by_their_split(settings, name):
    assert class_set_name(ClassificationConfig(**settings)) == name
