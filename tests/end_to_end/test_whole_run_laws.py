"""Laws for whole runs of any recipe: every example once per epoch, equal batches everywhere, new objectives."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretrainkit as pk
import pretrainkit.recipes
from pretrainkit.api import build_loader
from pretrainkit.recipes.registry import entries, find_recipe
from pretrainkit.tokenizers.shards import TokenShards
from pretrainkit.training import trainer
from support import sixth_recipe
from support.command_line import refused, succeed

SORTING, PAIRING = "support.sixth_recipe:SORTING/small", "support.sixth_recipe:PAIRING/small"


def bert_config(settings: list[str], *more: str) -> Any:
    return pk.load_config(settings[0], [*settings[1:], *more])


# ---- epochs ----


@pytest.mark.parametrize("batch_size", [1, 5, 8, 37])
def test_every_epoch_visits_every_example_once(batch_size: int) -> None:
    num_steps = -(-3 * sixth_recipe.NUM_EXAMPLES // batch_size)
    config = pk.load_config(SORTING, [f"data.batch_size={batch_size}", f"num_steps={num_steps}"])
    seen = [pair for batch in pk.batches(config) for pair in zip(batch["epoch"].tolist(), batch["index"].tolist())]
    orders = []
    for epoch in range(3):
        part = seen[epoch * sixth_recipe.NUM_EXAMPLES : (epoch + 1) * sixth_recipe.NUM_EXAMPLES]
        assert {e for e, _ in part} == {epoch}
        assert sorted(index for _, index in part) == list(range(sixth_recipe.NUM_EXAMPLES))
        orders.append([index for _, index in part])
    assert orders[0] != orders[1] != orders[2]


def test_an_epoch_of_bert_holds_every_token_of_the_corpus_once(settings: list[str], tokens: Path) -> None:
    """Masks undone, the tokens of one epoch are those of the shards: nothing is lost, cut off or seen twice."""
    config = bert_config(settings, "data.batching=rows", "data.batch_size=50", "num_steps=1000")
    recipe = find_recipe("bert")
    bound = recipe.bind(config)
    left = sum(recipe.open_data(bound, "train").sizes)
    shards = TokenShards.open(tokens / "train")
    special = shards.special
    seen: Counter[int] = Counter()
    for batch in pk.batches(config):
        ids_BT = batch["input_ids"].copy()
        rows, slots = (batch["masked_lm_weights"] > 0).nonzero()
        ids_BT[rows, batch["masked_lm_positions"][rows, slots]] = batch["masked_lm_ids"][rows, slots]
        num = min(left, len(ids_BT))
        seen.update(ids_BT[:num][batch["input_mask"][:num].astype(bool)].tolist())
        left -= num
        if not left:
            break
    assert left == 0
    for control in (special.cls, special.sep):
        del seen[control]
    stored = Counter(
        token
        for number in range(shards.num_documents)
        for sentence in shards.document(number)
        for token in sentence.tolist()
    )
    assert seen == stored


# ---- equal batches ----


def joined(parts: list[dict[str, np.ndarray]], name: str) -> np.ndarray:
    return np.concatenate([part[name] for part in parts])


@pytest.mark.parametrize("batching", ["rows", "packed"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("microbatch_size", [None, 1])
def test_the_microbatches_of_all_ranks_are_the_batch(
    settings: list[str], batching: str, world_size: int, microbatch_size: int | None
) -> None:
    layout = [f"data.batching={batching}", "num_steps=5"]
    if microbatch_size:
        layout.append(f"data.microbatch_size={microbatch_size}")
    config = bert_config(settings, *layout)
    recipe = find_recipe("bert")
    bound = recipe.bind(config)
    loaders = [
        build_loader(bound, recipe.open_data(bound, "train"), rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    prepared = [loader.iterate(0, 5) for loader in loaders]
    for batch in pk.batches(config):
        parts = [part for rank in prepared for part in next(rank).microbatches]
        assert len(parts) == world_size * (8 // world_size if microbatch_size else 1)
        for name in ("input_ids", "masked_lm_ids", "masked_lm_weights", "next_sentence_label"):
            np.testing.assert_array_equal(joined(parts, name), batch[name], err_msg=name)
    for rank in prepared:
        rank.close()


@pytest.mark.parametrize("start", [0, 4])
def test_train_uses_the_batches_of_the_function_batches(
    settings: list[str], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    """It also holds after a resumption."""
    import shutil

    fed: list[dict[str, np.ndarray]] = []
    original = trainer.to_device

    def spying(batch: dict[str, np.ndarray], device: torch.device) -> Any:
        fed.append({name: array.copy() for name, array in batch.items()})
        return original(batch, device)

    monkeypatch.setattr(trainer, "to_device", spying)
    run = tmp_path / "run"
    if start:
        shutil.copytree(finished, run)
        for step in (8, 12):
            shutil.rmtree(run / "checkpoints" / f"step-{step:08d}")
        pk.resume(run)
    else:
        pk.train(bert_config(settings), run)
    expected = list(pk.batches(bert_config(settings), start_step=start))
    assert len(fed) == len(expected) == 12 - start
    for ours, theirs in zip(fed, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, array in theirs.items():
            np.testing.assert_array_equal(ours[name], array, err_msg=name)


def test_another_seed_gives_other_batches(settings: list[str]) -> None:
    batches = [next(pk.batches(bert_config(settings, f"seed={seed}"))) for seed in (0, 1)]
    assert batches[0]["input_ids"].tolist() != batches[1]["input_ids"].tolist()


def test_a_mixture_draws_from_both_at_the_stated_rates(settings: list[str], tokens: Path) -> None:
    """Three quarters of the steps' examples from the smaller part, which is then repeated more often."""
    both = f"data.train=[{{path: {tokens}/train, weight: 1}}, {{path: {tokens}/valid, weight: 3}}]"
    config = bert_config(settings, both, "data.valid=null", "num_steps=50")
    recipe = find_recipe("bert")
    bound = recipe.bind(config)
    loader = build_loader(bound, recipe.open_data(bound, "train"), rank=0, world_size=1)
    sources = np.concatenate([loader.global_records(step).source for step in range(50)])
    assert np.mean(sources == 1) == pytest.approx(0.75, abs=0.01)


# ---- a sixth objective ----


@pytest.mark.parametrize("preset", [SORTING, PAIRING])
def test_an_own_recipe_trains_from_the_command_line(preset: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = (preset, "num_steps=60", "log.every_steps=1", "checkpoint.every_steps=20", "model.dropout=0.1")
    succeed("train", *words, "--out", run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, last = (np.mean([line["loss"] for line in part]) for part in (lines[:10], lines[-10:]))
    assert last < first - 0.1


@pytest.mark.parametrize("preset", [SORTING, PAIRING])
def test_an_own_recipe_resumes_exactly(preset: str, tmp_path: Path) -> None:
    import shutil

    words = (preset, "num_steps=12", "log.every_steps=1", "checkpoint.every_steps=4", "model.dropout=0.2")
    succeed("train", *words, "data.microbatch_size=2", "checkpoint.keep_last=9", "--out", tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for step in (8, 12):
        shutil.rmtree(tmp_path / "resumed" / "checkpoints" / f"step-{step:08d}")
    succeed("resume", tmp_path / "resumed")
    whole, resumed = (
        [
            (line["step"], line["loss"], line["grad_norm"])
            for line in map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        ]
        for name in ("whole", "resumed")
    )
    assert whole == resumed
    assert len(whole) == 12
    weights = [pk.load_model(tmp_path / name).state_dict() for name in ("whole", "resumed")]
    assert all(torch.equal(weights[1][name], value) for name, value in weights[0].items())


@pytest.mark.parametrize("preset", [SORTING, PAIRING])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_own_recipe_learns_alike_in_microbatches(preset: str, size: int, tmp_path: Path) -> None:
    """It also holds if every example is compared with the whole batch. Equal up to the order of sums."""
    words = (preset, "num_steps=12", "log.every_steps=1", "precision.compute=float32")
    succeed("train", *words, "--out", tmp_path / "whole")
    succeed("train", *words, f"data.microbatch_size={size}", "--out", tmp_path / "parts")
    whole, parts = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "parts")
    )
    for name in ("loss", "grad_norm"):
        assert [line[name] for line in parts] == pytest.approx([line[name] for line in whole], rel=1e-4)


def test_a_capability_that_a_recipe_lacks_is_reported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeed("train", SORTING, "--out", run)
    message = refused("export", run, "--out", tmp_path / "export")
    assert "use --format safetensors\n  recipes with this capability: bert," in message
    succeed("export", run, "--format", "safetensors", "--out", tmp_path / "export")
    assert pk.load_model(tmp_path / "export").state_dict().keys() == pk.load_model(run).state_dict().keys()


def test_a_recipe_is_discovered_as_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sixth").mkdir()
    (tmp_path / "sixth" / "__init__.py").write_text("")
    (tmp_path / "sixth" / "recipe.py").write_text(
        "from support.sixth_recipe import Sorting, Toy\n"
        "RECIPE = Toy('sixth', 'Ranks of numbers, in a folder.', Sorting, 6)\n"
    )
    monkeypatch.setattr(pretrainkit.recipes, "__path__", [*pretrainkit.recipes.__path__, str(tmp_path)])
    check_that_the_sixth_recipe_works(tmp_path)


def test_a_recipe_is_discovered_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_package.py").write_text(
        "from support.sixth_recipe import Sorting, Toy\n"
        "RECIPE = Toy('sixth', 'Ranks of numbers, in a folder.', Sorting, 6)\n"
    )
    metadata = tmp_path / "their_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[pretrainkit.recipes]\nsixth = their_package:RECIPE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    check_that_the_sixth_recipe_works(tmp_path)


def check_that_the_sixth_recipe_works(folder: Path) -> None:
    entries.cache_clear()
    try:
        assert "sixth/small" in succeed("recipes")
        assert "data:" in succeed("config", "show", "sixth/small")
        assert "did you mean sixth/small?" in refused("train", "sixth/smal", "--out", folder / "run")
        succeed("train", "sixth/small", "model.width=4", "--out", folder / "run")
        assert pk.load_model(folder / "run").body.weight.shape == (4, sixth_recipe.NUM_FEATURES)
    finally:
        entries.cache_clear()
        for name in ("their_package", "pretrainkit.recipes.sixth.recipe", "pretrainkit.recipes.sixth"):
            sys.modules.pop(name, None)


def test_two_recipes_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "clash-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: clash\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[pretrainkit.recipes]\nbert = support.sixth_recipe:SORTING\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    entries.cache_clear()
    try:
        assert "two recipes are called 'bert'" in refused("train", "bert/tiny", "--out", tmp_path / "run")
        assert "t5/tiny" in succeed("recipes")
    finally:
        entries.cache_clear()


def test_a_broken_recipe_is_named_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_recipe.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    message = refused("train", "broken_recipe:RECIPE/small", "--out", tmp_path / "run")
    assert "no_such_package" in message
    assert "support.sixth_recipe:Toy" in refused("train", "support.sixth_recipe:Toy/small", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
