"""Training on cached features of frozen towers gives what training on images and captions gives."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("PIL")

from pretrainkit import api
from pretrainkit.demo.shapes import write_sets
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.clip.recipe import RECIPE
from pretrainkit.tokenizers.train import TokenizerSettings, train_tokenizer

SETTINGS = [
    "model.image.image_size=16",
    "model.image.hidden_size=24",
    "model.image.num_heads=3",
    "model.image.intermediate_size=32",
    "model.image.trainable=false",
    "model.text.hidden_size=16",
    "model.text.num_heads=2",
    "model.text.intermediate_size=32",
    "model.projection.dim=12",
    "data.valid_transforms=[{op: resize, size: 16}]",
    "data.train_transforms=[{op: resize, size: 16}]",
    "data.batch_size=8",
    "data.microbatch_size=4",
    "num_steps=12",
    "schedule.num_warmup_steps=2",
    "precision.compute=float32",
    "log.every_steps=1",
    "checkpoint.every_steps=6",
    "evaluate.batch_size=5",
]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    root = tmp_path_factory.mktemp("frozen")
    write_sets(root / "sets", num_train=9, num_valid=3, side=20, seed=0)
    words = ["a", "red", "blue", "green", "small", "large", "circle", "square", "on", "the", "of", "left", "above"]
    (root / "words.tsv").write_text("".join(f"{word}\t5\n" for word in words))
    train_tokenizer([root / "words.tsv"], root / "tok", TokenizerSettings(kind="wordpiece", vocab_size=60))
    return root


def config_of(sets, *more):
    data = [f"data.{split}={sets}/sets/single,{sets}/sets/pairs" for split in ("train", "valid")]
    return api.load_config("clip/tiny", [*SETTINGS, *data, f"data.tokenizer={sets}/tok", *more])


def losses(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("text", ["true", "false"])
def test_losses_and_weights_are_those_without_the_cache(sets, tmp_path, text):
    more = [f"model.text.trainable={text}"]
    api.train(config_of(sets, *more), tmp_path / "plain", device="cpu")
    api.train(config_of(sets, *more, "data.cache_frozen=true"), tmp_path / "cached", device="cpu")
    np.testing.assert_allclose(losses(tmp_path / "cached"), losses(tmp_path / "plain"), rtol=2e-5)
    plain, cached = (api.load_model(tmp_path / name).state_dict() for name in ("plain", "cached"))
    for name, tensor in plain.items():
        torch.testing.assert_close(cached[name], tensor, rtol=1e-3, atol=2e-4)
    (features,) = (tmp_path / "cached" / "cache").iterdir()
    towers = json.loads((features / "manifest.json").read_text())["towers"]
    assert towers == (["image"] if text == "true" else ["image", "text"])


def test_a_resumed_run_uses_the_results_of_the_first_start(sets, tmp_path):
    cached = ["data.cache_frozen=true"]
    api.train(config_of(sets, *cached), tmp_path / "whole", device="cpu")
    api.train(config_of(sets, *cached, "num_steps=6", "schedule.name=constant"), tmp_path / "half", device="cpu")
    api.train(config_of(sets, *cached, "schedule.name=constant"), tmp_path / "through", device="cpu")
    (features,) = (tmp_path / "half" / "cache").iterdir()
    before = {path.name: path.stat().st_mtime_ns for path in features.iterdir()}
    api.resume(tmp_path / "half", ["num_steps=12"], device="cpu")
    assert losses(tmp_path / "half") == losses(tmp_path / "through")
    assert {path.name: path.stat().st_mtime_ns for path in features.iterdir()} == before
    assert [path.name for path in (tmp_path / "half" / "cache").iterdir()] == [features.name]


def test_a_batch_holds_features_of_the_right_rows_and_no_pixels(sets, tmp_path):
    config = RECIPE.bind(config_of(sets, "data.cache_frozen=true", "model.text.trainable=false"))
    source, model = RECIPE.open_data(config, "train"), RECIPE.build_model(config).eval()
    from pretrainkit.data.order import Order
    from pretrainkit.dist.env import World
    from pretrainkit.training.precision import resolve_precision

    precision = resolve_precision(config.precision, torch.device("cpu"))
    cached = RECIPE.with_cached_features(config, source, lambda: model, tmp_path, World(), precision)
    assert cached.fingerprint == source.fingerprint
    records = Order(source.sizes, seed=3).records(np.arange(20))
    plain, found = source.build(records), cached.build(records)
    assert found.keys() == plain.keys() - {"image", "input_ids"} | {"image_features", "text_features"}
    for name in found.keys() & plain.keys():
        assert np.array_equal(found[name], plain[name])
    with torch.no_grad():
        inputs = {name: torch.from_numpy(plain[name]) for name in ("image", "input_ids", "num_tokens")}
        features = {name: torch.from_numpy(found[name]) for name in ("image_features", "text_features")}
        wanted, given = model(**inputs), model(**features)
    for name in ("image", "text"):
        torch.testing.assert_close(given[name], wanted[name], rtol=1e-4, atol=1e-5)


def test_a_cache_of_nothing_is_refused_with_the_reasons(sets, tmp_path):
    random_crop = "data.train_transforms=[{op: random_resize_crop, size: 16}]"
    with pytest.raises(ConfigError, match=r"random_resize_crop, which is random; model\.text\.trainable=true"):
        api.train(config_of(sets, "data.cache_frozen=true", random_crop), tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match=r"objective\.mixup mixes images"):
        api.train(config_of(sets, "data.cache_frozen=true", "objective.mixup={}"), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_bad_row_stops_the_run_and_leaves_no_features(sets, tmp_path):
    import shutil

    shutil.copytree(sets, tmp_path / "copy")
    (tmp_path / "copy/sets/pairs/train/00004.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"00004\.png"):
        api.train(config_of(tmp_path / "copy", "data.cache_frozen=true"), tmp_path / "run", device="cpu")
    assert not list((tmp_path / "run" / "cache").glob("features-*"))
    shutil.copytree(sets / "sets", tmp_path / "copy/sets", dirs_exist_ok=True)
    api.train(config_of(tmp_path / "copy", "data.cache_frozen=true"), tmp_path / "run", device="cpu")
