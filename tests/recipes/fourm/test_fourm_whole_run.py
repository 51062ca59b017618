"""Complete runs on generated data: training, exact resume, published files in both directions, two processes."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import pretrainkit
from pretrainkit.recipes.fourm.recipe import RECIPE
from support.fourm_data import write_set, write_tokenizer
from support.whole_runs import (
    assert_exports_are_the_run,
    assert_resumes_exactly,
    assert_two_processes_train_as_one,
    weights,
)

pytestmark = pytest.mark.slow

STEPS = 4
SETTINGS = (
    "model.hidden_size=16",
    "model.num_heads=2",
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "model.intermediate_size=42",
    "masking.num_input_tokens=24",
    "masking.num_target_tokens=24",
    "data.batch_size=4",
    "data.microbatch_size=2",
    "data.num_workers=0",
    f"num_steps={STEPS}",
    "schedule.num_warmup_steps=0",
    "checkpoint.every_steps=2",
    "checkpoint.keep_last=9",
    "checkpoint.asynchronous=false",
    "precision.compute=float32",
    "evaluate.every_steps=2",
    "evaluate.num_examples=4",
    "log.every_steps=1",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("fourm")
    data = [
        f"data.train={write_set(folder / 'train', 8, 0)}",
        f"data.valid={write_set(folder / 'valid', 4, 1)}",
        f"data.tokenizer={write_tokenizer(folder / 'words')}",
    ]
    pretrainkit.train(pretrainkit.load_config("fourm/tiny", [*data, *SETTINGS]), folder / "whole")
    return folder / "whole"


def test_a_run_resumed_in_the_middle_ends_with_the_same_weights(run: Path, tmp_path: Path) -> None:
    assert_resumes_exactly(run, tmp_path / "half")


def test_losses_of_all_modalities_are_logged_and_evaluated(run: Path) -> None:
    names = {"caption", "colors@64", "depth@64", "det", "seg@64"}
    trained = json.loads((run / "metrics.jsonl").read_text("utf-8").splitlines()[-1])
    held_out = json.loads((run / "eval.jsonl").read_text("utf-8").splitlines()[-1])
    assert {f"{name}_loss" for name in names} <= trained.keys()
    assert {f"{name}_{what}" for name in names for what in ("loss", "accuracy")} <= held_out.keys()


def test_every_parameter_is_trained(run: Path) -> None:
    first, last = weights(run, 2), weights(run)
    assert all(not torch.equal(tensor, first[name]) for name, tensor in last.items())


def test_more_modalities_start_from_a_model_of_fewer(run: Path, tmp_path: Path) -> None:
    config = pretrainkit.load_config(
        run / "config.yaml", [f"init_from={run}", "init.missing=random", "num_steps=1", "schedule.num_warmup_steps=1"]
    )
    depth = next(modality for modality in config.model.modalities if modality.name == "depth@64")
    more = (*config.model.modalities, depth.model_copy(update={"name": "far@64"}))
    config = config.model_copy(update={"model": config.model.model_copy(update={"modalities": more})})
    pretrainkit.train(config, tmp_path / "more")  # one update at a rate of 0
    before, after = weights(run), weights(tmp_path / "more", 1)
    assert after.keys() - before.keys() == {
        "input_modality.far@64", "inputs.far@64.table", "targets.far@64.head"
    }  # fmt: skip
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_a_run_becomes_a_published_file_and_comes_back(run: Path, tmp_path: Path) -> None:
    pretrainkit.export(run, "4m", tmp_path / "model.safetensors")
    imported = RECIPE.import_file(tmp_path / "model.safetensors", "4m", pretrainkit.load_config(run / "config.yaml"))
    assert all(torch.equal(imported.state[name], tensor) for name, tensor in weights(run).items())


@pytest.mark.parametrize("format", ["4m", "safetensors"])
def test_an_export_is_the_run(run: Path, tmp_path: Path, format: str) -> None:
    assert_exports_are_the_run(run, tmp_path, "fourm", format, name="export.safetensors")


def test_two_processes_train_as_one(run: Path, tmp_path: Path) -> None:
    assert_two_processes_train_as_one(run, tmp_path, "data.microbatch_size=1")


def test_a_run_with_a_reader_of_the_user_moves_and_its_export_names_the_file(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for split, num in (("train", 8), ("valid", 4)):
        write_set(here / split, num, 0 if split == "train" else 1)
    (here / "mine.py").write_text(
        "from pretrainkit.recipes.fourm.modality import Modality\n"
        "from pretrainkit.recipes.fourm.readers import Caption\n"
        "READER = Caption()\n"
        "OWN = Modality(name='own', kind='sequence', length=9, vocab_size=9, folder='caption', "
        "reader=__file__ + ':READER')\n"
    )
    data = [f"data.train={here / 'train'}", f"data.valid={here / 'valid'}"]
    words = f"data.tokenizer={write_tokenizer(here / 'words')}"
    modalities = f"model.modalities=[rgb@64,{here / 'mine.py'}:OWN]"
    config = pretrainkit.load_config("fourm/tiny", [*data, words, modalities, *SETTINGS])
    pretrainkit.train(config, here / "run")
    shutil.move(here, there)
    pretrainkit.resume(there / "run", ["num_steps=6"])
    assert (there / "run/checkpoints/step-00000006").is_dir()
    pretrainkit.export(there / "run", "safetensors", tmp_path / "exported")
    modalities_of_export = json.loads((tmp_path / "exported/pretrainkit.json").read_text())["config"]["model"][
        "modalities"
    ]
    assert [modality["reader"] for modality in modalities_of_export] == ["rgb", "mine.py:READER"]
