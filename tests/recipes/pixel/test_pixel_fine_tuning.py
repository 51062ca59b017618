"""From a pretrained model to one that is fine-tuned on classes, resumed exactly, used and exported."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretrainkit import api
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.glue.answers import records_of
from pretrainkit.recipes.pixel.model import build, position_table
from pretrainkit.recipes.pixel.relevance import explain
from pretrainkit.running.initial import load_initial
from support.pixel_encoders import SHORT, SMALL, require_exact_resume, write_encoder
from support.whole_runs import assert_exports_are_the_run

pytest.importorskip("freetype", reason="needs the package freetype-py to draw text")


def write_rows(path: Path, num: int, *, is_pair: bool = False) -> Path:
    """Texts of broad or of narrow letters."""
    rng = random.Random(path.name)
    rows = []
    for _ in range(num):
        is_broad = rng.random() < 0.5
        word = "mwm" if is_broad else "lil"
        row = {"text": " ".join([word] * rng.randint(1, 5)), "label": "broad" if is_broad else "narrow"}
        rows.append(row | ({"other": "a moon"} if is_pair else {}))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An encoder, rows, and `run`, a fine-tuning that was never interrupted."""
    place = tmp_path_factory.mktemp("fine-tuning")
    write_encoder(place)
    write_rows(place / "train.jsonl", 128)
    write_rows(place / "valid.jsonl", 24)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRETRAINKIT_CACHE", str(place / "cache"))
        finetune(place, place / "run")
        yield place


def finetune(place: Path, out: Path, *more: str) -> dict:
    data = [f"data.train={place}/train.jsonl", f"data.valid={place}/valid.jsonl", "data.texts=[text]"]
    config = api.load_config("glue/own", [f"init_from={place}/encoder", *data, *SHORT, *more])
    return api.train(config, out, device="cpu")


def test_it_learns_the_look_of_letters(folder: Path, tmp_path: Path) -> None:
    assert finetune(folder, tmp_path / "run", "num_steps=30", "checkpoint.every_steps=30")["valid_accuracy"] > 90


def test_a_run_resumes_exactly(folder: Path, tmp_path: Path) -> None:
    require_exact_resume(folder / "run", tmp_path / "half")


def test_a_run_has_all_it_needs(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    opened = api.open_model(tmp_path / "run")
    assert opened.tokenizer == tmp_path / "run" / "tokenizer"
    assert (opened.tokenizer / "latin.ttf").is_file()
    assert opened.model.encoder.position_embedding.shape[0] == 25
    assert opened.config.model.encoder.config["model"]["grid_width"] == 6


def test_answers_are_json_lines(folder: Path, tmp_path: Path) -> None:
    out = api.predict(folder / "run", tmp_path / "answers.jsonl", input=folder / "valid.jsonl", device="cpu")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 24
    assert {line["label"] for line in lines} <= {"broad", "narrow"}


def test_an_export_answers_as_the_run(folder: Path, tmp_path: Path) -> None:
    api.export(folder / "run", "safetensors", tmp_path / "out")
    answers = [
        api.predict(path, tmp_path / f"{path.name}.jsonl", input=folder / "valid.jsonl", device="cpu").read_text()
        for path in (folder / "run", tmp_path / "out")
    ]
    assert answers[0] == answers[1]


def test_an_export_is_the_run(folder: Path, tmp_path: Path) -> None:
    assert_exports_are_the_run(folder / "run", tmp_path, "glue")


def test_a_folder_in_the_originals_layout_answers_as_the_run(folder: Path, tmp_path: Path) -> None:
    api.export(folder / "run", "huggingface", tmp_path / "published")
    values = json.loads((tmp_path / "published" / "config.json").read_text())
    assert values["architectures"] == ["PIXELForSequenceClassification"]
    assert (values["image_size"], values["id2label"]) == ([16, 384], {"0": "broad", "1": "narrow"})
    api.import_model(tmp_path / "published", "glue", tmp_path / "own")
    run, own = (api.open_model(path) for path in (folder / "run", tmp_path / "own"))
    batch = {name: torch.from_numpy(array) for name, array in valid_batch(run).items()}
    with torch.no_grad():
        answers = [opened.model.eval()(batch, 24) for opened in (run, own)]
    torch.testing.assert_close(answers[1][0], answers[0][0], rtol=1e-4, atol=1e-5)  # paper is no longer 0


def valid_batch(opened: Any) -> dict[str, np.ndarray]:
    source = opened.recipe.open_data(opened.config, "valid")
    return source.build(records_of(source, np.arange(3)))


@pytest.mark.parametrize("pooling", ["max", "cls", "pma:2"])
def test_poolings_are_settings_of_the_encoder(folder: Path, tmp_path: Path, pooling: str) -> None:
    finetune(folder, tmp_path / "run", f"model.encoder_settings.text.pooling={pooling}", "num_steps=2")
    opened = api.open_model(tmp_path / "run")
    assert opened.config.model.encoder.config["text"]["pooling"] == pooling


def test_pairs_longer_texts_and_another_renderer(folder: Path, tmp_path: Path) -> None:
    """Positions continue past those of pretraining, and the run keeps the renderer of its config."""
    for name in ("train", "valid"):
        write_rows(tmp_path / f"{name}.jsonl", 24, is_pair=True)
    shutil.copytree(folder / "encoder", tmp_path / "encoder")
    more = ["data.texts=[text,other]", "data.max_seq_length=64", "num_steps=2"]
    finetune(tmp_path, tmp_path / "run", *more, "model.encoder_settings.text.renderer.rgb=true")
    opened = api.open_model(tmp_path / "run")
    assert opened.model.encoder.position_embedding.shape[0] == 65
    assert json.loads((opened.tokenizer / "rendering.json").read_text())["config"]["rgb"] is True
    source = opened.recipe.open_data(opened.config, "valid")
    assert source.build(records_of(source, np.arange(1)))["patches"].shape[1] == 768


def test_unknown_settings_of_an_encoder_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pooled"):
        finetune(folder, tmp_path / "run", "model.encoder_settings.text.pooled=max")


def test_a_fine_tuned_model_lends_its_encoder(folder: Path, tmp_path: Path) -> None:
    finetune(folder, tmp_path / "next", f"init_from={folder}/run", "num_steps=1", "optimizer.peak_lr=1e-30")
    first, second = (api.open_model(path).model.state_dict() for path in (folder / "run", tmp_path / "next"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize("length", [16, 40])
def test_a_fine_tuned_model_lends_its_encoder_for_another_length(folder: Path, tmp_path: Path, length: int) -> None:
    more = [f"init_from={folder}/run", "num_steps=1", "optimizer.peak_lr=1e-30", f"data.max_seq_length={length}"]
    finetune(folder, tmp_path / "next", *more)
    first, second = (api.open_model(path).model.encoder for path in (folder / "run", tmp_path / "next"))
    table, other = first.position_embedding, second.position_embedding
    assert len(other) == length + 1
    kept = min(len(table), len(other))
    assert torch.equal(table[:kept], other[:kept])
    assert torch.equal(other[kept:], position_table(length, table.shape[1], 6)[kept:])
    assert torch.equal(first.pooling.dense.weight, second.pooling.dense.weight)


@pytest.mark.parametrize("pooling", ["max", "cls", "pma:2"])
def test_a_fine_tuned_model_lends_its_encoder_to_another_pooling(
    folder: Path, tmp_path: Path, pooling: str, caplog: pytest.LogCaptureFixture
) -> None:
    more = [f"init_from={folder}/run", "num_steps=1", "optimizer.peak_lr=1e-30"]
    finetune(folder, tmp_path / "next", *more, f"model.encoder_settings.text.pooling={pooling}")
    first, second = (api.open_model(path).model.state_dict() for path in (folder / "run", tmp_path / "next"))
    kept = [name for name in second if not name.startswith("encoder.pooling.")]
    assert all(torch.equal(first[name], second[name]) for name in kept)
    assert "the pooling is initialized again" in caplog.text
    assert not torch.equal(first["encoder.pooling.norm.weight"], torch.ones(32))
    fresh = [name for name in second if name.startswith("encoder.pooling.") and name.endswith("norm.weight")]
    assert all(torch.equal(second[name], torch.ones(32)) for name in fresh)


@pytest.mark.parametrize("length", [24, 50])
def test_pretraining_starts_from_weights_of_another_length(folder: Path, length: int) -> None:
    given = ["schedule.num_warmup_steps=0", f"init_from={folder}/encoder", f"model.max_patches={length}"]
    settings = [*SMALL[:-2], "data.max_patches=24", *given]
    config = api.load_config("pixel/tiny", settings)
    with pytest.raises(ConfigError, match=r"set model\.grid_width=6"):
        load_initial(build(config.model), config)
    config = api.load_config("pixel/tiny", [*settings, "model.grid_width=6"])
    load_initial(model := build(config.model), config)
    trained = api.open_model(folder / "encoder").model.state_dict()
    for name, tensor in model.state_dict().items():
        if name.endswith("position_embedding"):
            assert torch.equal(tensor, position_table(length, tensor.shape[1], 6))
        else:
            assert torch.equal(tensor, trained[name])


def test_an_import_keeps_the_renderer_that_it_is_given(folder: Path, tmp_path: Path) -> None:
    api.export(folder / "encoder", "huggingface", tmp_path / "published")
    (tmp_path / "published" / "text_renderer_config.json").unlink()
    api.import_model(tmp_path / "published", "pixel", tmp_path / "own", tokenizer=folder / "renderer")
    assert sorted(path.name for path in (tmp_path / "own" / "tokenizer").iterdir()) == [
        "latin.ttf",
        "rendering.json",
        "text_renderer_config.json",
    ]


def test_an_answer_of_a_run_is_explained(folder: Path) -> None:
    """These are the commands of the README."""
    opened = api.open_model(folder / "run")
    renderer = api.open_renderer(opened.tokenizer, opened.config.data.max_seq_length)
    found = explain(opened.model.eval(), opened.model.encoder, renderer, "mwm lil")
    assert found.answer_C.shape == (2,)
    assert found.picture().shape[:2] == (16, len(found.columns_XP))


def test_a_font_can_replace_a_renderer(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "encoder", tmp_path / "encoder")
    shutil.rmtree(tmp_path / "encoder" / "tokenizer")
    more = [f"init_from={tmp_path}/encoder", f"data.tokenizer={folder}/latin.ttf", "num_steps=1"]
    finetune(folder, tmp_path / "run", *more)
    assert (tmp_path / "run" / "tokenizer" / "latin.ttf").is_file()
