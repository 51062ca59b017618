"""Whole runs on generated sets, with everything random switched on."""

import json
import re
import shlex
from functools import cache

import pytest
import torch
from torch import Tensor

from support.pair_sets import make_tokenizer, png, rows, write_csv_set

pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'pretrainkit[vision]'")

from pretrainkit import api
from pretrainkit.errors import ConfigError, DataError, InputError
from pretrainkit.training.checkpoints.checkpoint import read_weights
from pretrainkit.training.checkpoints.files import newest_valid
from pretrainkit.training.watch import Watcher
from support.remedies import followed
from support.whole_runs import assert_exports_are_the_run

pytestmark = pytest.mark.slow

SETTINGS = [
    "model.image.image_size=16",
    "model.image.hidden_size=24",
    "model.image.num_heads=3",
    "model.image.intermediate_size=32",
    "model.image.patch_dropout=0.4",
    "model.text.hidden_size=16",
    "model.text.num_heads=2",
    "model.text.intermediate_size=32",
    "model.text.attention_dropout=0.2",
    "model.projection.dim=12",
    "objective.mixup={}",
    "data.order=debias",
    "data.text_augment={}",
    "data.train_transforms=[{op: random_resize_crop, size: 16}, {op: autoaug}]",
    "data.valid_transforms=[{op: resize, size: 16}]",
    "data.batch_size=8",
    "data.microbatch_size=4",
    "num_steps=6",
    "schedule.num_warmup_steps=1",
    "checkpoint.every_steps=3",
    "checkpoint.asynchronous=false",
    "log.every_steps=1",
]


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> list[str]:
    """Settings that name two sets and a tokenizer."""
    root = tmp_path_factory.mktemp("whole")
    for name, num_images in (("one", 12), ("two", 9)):
        write_csv_set(root / name, "train", rows(num_images, 2))
        write_csv_set(root / name, "valid", rows(6, 2, first=100))
    return [f"data.train={root}/one,{root}/two", f"data.tokenizer={make_tokenizer(root / 'tokenizer')}"]


class Killed(Exception):
    """Raised in place of the end of the process."""


class KilledAt(Watcher):
    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, step: int, num_steps: int) -> None:
        if step == self.step:
            raise Killed


def metric_lines(run, first: int) -> list[dict]:
    """Return the lines of steps from `first`, without values that depend on the clock."""
    lines = {line["step"]: line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}
    timed = ("second", "data_wait", "padding", "mfu", "memory", "utilization")
    return [
        {name: value for name, value in line.items() if not any(word in name for word in timed)}
        for step, line in lines.items()
        if step >= first
    ]


def saved_last(run) -> dict[str, Tensor]:
    """Weights and the state of the optimizer."""
    folder = newest_valid(run / "checkpoints")
    assert folder is not None
    return read_weights(folder, prefix="")


def test_fact_36_a_run_with_mixup_and_debias_that_was_killed_is_resumed_bit_for_bit(given, tmp_path):
    config = api.load_config("clip/tiny", [*SETTINGS, *given])
    api.train(config, tmp_path / "straight", device="cpu")
    with pytest.raises(Killed):
        api.train(config, tmp_path / "killed", device="cpu", watcher=KilledAt(4))
    api.resume(tmp_path / "killed", device="cpu")
    assert metric_lines(tmp_path / "killed", 1) == metric_lines(tmp_path / "straight", 1)
    resumed, straight = (saved_last(tmp_path / name) for name in ("killed", "straight"))
    assert resumed.keys() == straight.keys()
    assert [name for name in straight if not torch.equal(resumed[name], straight[name])] == []


TIMM_OPTIONS = "{patch_size: 8, embed_dim: 24, depth: 1, num_heads: 3}"
TIMM = f"model.image={{kind: timm, name: vit_tiny_patch16_224, pretrained: false, options: {TIMM_OPTIONS}}}"
RESNET = "model.image={kind: timm, name: resnet10t, pretrained: false, freeze_batch_norm: true}"


@pytest.fixture(scope="module")
def bert(tmp_path_factory, transformers) -> str:
    """A setting: a small BERT without weights, to be trained from scratch."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    folder = tmp_path_factory.mktemp("bert")
    transformers.BertConfig(vocab_size=80, **sizes).save_pretrained(folder)
    return f"model.text={{kind: huggingface, name: {folder}, pretrained: false}}"


FOREIGN = [
    *("model.image.image_size=16", "model.projection.dim=12", "data.batch_size=8", "data.microbatch_size=4"),
    *("data.train_transforms=[{op: random_resize_crop, size: 16}, {op: autoaug}]", "data.num_epochs=null"),
    *("data.valid_transforms=[{op: resize, size: 20}, {op: center_crop, size: 16}]", "schedule.warmup_share=null"),
    *("checkpoint.asynchronous=false", "log.every_steps=1"),
]
QUICK = ["num_steps=1", "schedule.num_warmup_steps=0", "evaluate.every_steps=null", "precision.compute=float32"]
PUBLISHED = ["data.num_epochs=null", "schedule.warmup_share=null", "model.image.patch_size=8"]
ONE_LAYER = ["model.image.num_layers=1", "model.text.num_layers=1"]


@pytest.fixture(scope="module")
def small_runs(given, tmp_path_factory):
    """Return a function of (preset, settings) that returns the folder of a run of one step and trains each once."""
    held_out = given[0].replace("data.train=", "data.valid=")

    @cache
    def run(preset, *words):
        out = tmp_path_factory.mktemp("small") / "run"
        api.train(api.load_config(preset, [*words, *given, held_out, *QUICK]), out, device="cpu")
        return out

    return run


@pytest.mark.parametrize("temperature", ["log_parameter", "constant", "parameter"])
@pytest.mark.parametrize("format", ["huggingface", "safetensors"])
def test_an_export_is_the_run(small_runs, tmp_path, format, temperature, transformers):
    """It also holds for a temperature that transformers has in another form."""
    run = small_runs("clip/tiny", *SETTINGS, *ONE_LAYER, f"model.temperature.kind={temperature}")
    exported = assert_exports_are_the_run(run, tmp_path, "clip", format)
    if format == "huggingface":
        processor = transformers.AutoProcessor.from_pretrained(exported)
        opened = api.open_model(exported)
        own = opened.recipe.input_ids(opened.config, exported, ["a red dog", "the cat sits"])
        assert processor(text=["a red dog", "the cat sits"])["input_ids"] == own


@pytest.mark.parametrize(
    ("preset", "format"),
    [("clip/zerovl-dga", "huggingface"), ("clip/zerovl-14m", "huggingface"), ("clip/zerovl-14m", "safetensors")],
)
def test_an_export_of_towers_of_others_is_the_run(preset, format, small_runs, bert, timm, tmp_path):
    """Fixed and learned temperatures, as ZeroVL has them."""
    assert_exports_are_the_run(small_runs(preset, TIMM, bert, *FOREIGN), tmp_path, "clip", format)


@pytest.mark.parametrize("pair", [pytest.param("convolutions and own", marks=pytest.mark.slow), "own and bert"])
def test_an_export_of_mixed_towers_is_the_run(pair, small_runs, bert, timm, tmp_path):
    tower, of_ours = (RESNET, "model.image.") if pair == "convolutions and own" else (bert, "model.text.")
    kept = [word for word in [*SETTINGS, *ONE_LAYER] if not word.startswith(of_ours)]
    assert_exports_are_the_run(small_runs("clip/tiny", tower, *kept), tmp_path, "clip")


@pytest.mark.parametrize(
    "preset",
    [
        *("vit-b-32", "vit-b-16"),
        *(pytest.param(f"zerovl{name}", marks=pytest.mark.slow) for name in ("", "-100m")),
    ],
)
def test_an_export_of_a_published_preset_is_the_run(preset, small_runs, bert, timm, tmp_path):
    """Their activations, pixels, temperatures and losses, in small."""
    own = [word for word in [*SETTINGS, *ONE_LAYER] if not word.startswith(("objective.mixup", "num_steps"))]
    run = small_runs(f"clip/{preset}", *([TIMM, bert, *FOREIGN] if "zerovl" in preset else [*own, *PUBLISHED]))
    assert_exports_are_the_run(run, tmp_path, "clip")


def test_an_export_prints_the_settings_of_the_held_out_sets_that_give_the_number_of_the_run(given, tmp_path):
    """Their names and splits, and the classes beside them, are not in a folder that `--data` names."""
    write_csv_set(tmp_path / "one", "train", rows(5, 2, first=200))
    write_csv_set(tmp_path / "two", "valid", rows(5, 2, first=300))
    for color in ("red", "blue"):
        (tmp_path / "classes" / color).mkdir(parents=True)
        (tmp_path / "classes" / color / "0.png").write_bytes(png(len(color)))
    held_out = [
        f"data.valid=[{{path: {tmp_path}/one, split: train, name: first}}, {{path: {tmp_path}/two}}]",
        f"evaluate.classification=[{{path: {tmp_path}/classes, name: colors, templates: ['{{}} thing']}}]",
    ]
    config = api.load_config("clip/tiny", [*SETTINGS, *ONE_LAYER, *given, *held_out, *QUICK])
    api.train(config, tmp_path / "run", device="cpu")
    exported = api.export(tmp_path / "run", "huggingface", tmp_path / "exported")
    with pytest.raises(DataError) as refused:
        api.evaluate(exported)
    *_, sets, classes = shlex.split(followed(refused.value, "running/held_out.py: … names no held-out data"))
    for name in ("one", "two"):
        sets = sets.replace("FOLDER", f"{tmp_path}/{name}", 1)
    found = api.evaluate(exported, overrides=[sets, classes.replace("FOLDER", f"{tmp_path}/classes")])
    assert found == api.evaluate(tmp_path / "run")
    assert {"first_T2I-R@1", "two_T2I-R@1"} < found.keys()
    assert any(name.startswith("colors") for name in found)


REFUSED = {
    "siglip": (
        "clip/siglip",
        [*SETTINGS, "objective.mixup=null", "model.image.num_layers=1", "model.text.num_layers=1"],
    ),
    "residual": ("clip/tiny", [*SETTINGS, *ONE_LAYER, "model.projection.kind=residual"]),
    "text_mlp": ("clip/tiny", [*SETTINGS, *ONE_LAYER, "model.projection.kind=text_mlp"]),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_transformers_cannot_hold_are_exported_as_the_message_advises(kind, small_runs, tmp_path):
    preset, words = REFUSED[kind]
    run = small_runs(preset, *words)
    with pytest.raises(InputError) as caught:
        api.export(run, "huggingface", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (format,) = re.findall(r"use --format (\w+)$", str(caught.value))
    assert_exports_are_the_run(run, tmp_path, "clip", format)


def test_a_run_is_resumed_with_its_copy_of_a_deleted_tokenizer(given, tmp_path):
    tokenizer = make_tokenizer(tmp_path / "tokenizer")
    config = api.load_config("clip/tiny", [*SETTINGS, given[0], f"data.tokenizer={tokenizer}", "num_steps=2"])
    api.train(config, tmp_path / "run", device="cpu")
    tokenizer.rename(tmp_path / "moved")
    assert "loss" in api.resume(tmp_path / "run", ["num_steps=3"], device="cpu")


def test_evaluation_without_held_out_data_is_refused(given, tmp_path):
    resolved = api.resolve_config("clip/tiny", [*SETTINGS, *given, "evaluate.every_steps=2"])
    with pytest.raises(ConfigError, match=r"evaluate\.every_steps=2, but there is nothing to evaluate on"):
        api.train(resolved.config, tmp_path / "run", origins=resolved.origins, device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_run_given_as_a_preset_is_refused_with_the_command_to_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.yaml").write_text("recipe: clip\n")
    with pytest.raises(ConfigError, match=r"runs/mine is a run, not a preset\n.*pretrainkit resume runs/mine"):
        api.load_config("runs/mine")
