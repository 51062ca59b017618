"""A whole run on generated text: training, exact resume, pictures, export and import."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import pretrainkit
from pretrainkit.errors import InputError
from pretrainkit.recipes.pixel.recipe import RECIPE
from pretrainkit.report.page import write_report
from support.page_runner import run_here
from support.remedies import followed
from support.whole_runs import assert_exports_are_the_run, assert_resumes_exactly, weights

pytestmark = pytest.mark.slow

pytest.importorskip("freetype", reason="needs the package freetype-py to draw text")

STEPS = 6
SETTINGS = (
    "model.hidden_size=16",
    "model.num_layers=2",
    "model.intermediate_size=32",
    "model.decoder_hidden_size=16",
    "model.decoder_num_layers=1",
    "model.decoder_intermediate_size=32",
    "model.hidden_dropout=0.1",
    "model.attention_dropout=0.1",
    "model.max_patches=36",
    "model.positions=grid",
    "model.rotary_theta=10000",
    "model.pixel_zero=black",
    "data.max_patches=36",
    "data.min_text_patches=4",
    "data.batch_size=4",
    "data.microbatch_size=2",
    f"num_steps={STEPS}",
    "schedule.num_warmup_steps=0",
    "checkpoint.every_steps=3",
    "checkpoint.keep_last=9",
    "checkpoint.asynchronous=false",
    "precision.compute=float32",
    "evaluate.num_examples=8",
    "evaluate.every_steps=3",
    "evaluate.num_samples=2",
    "log.every_steps=1",
    "log.tensorboard=true",
)


DATA = {"train": "train.txt", "valid": "valid.txt", "renderer": "latin.ttf"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run that was never interrupted."""
    folder = tmp_path_factory.mktemp("pixel")
    fonts = pytest.importorskip("PIL.ImageFont")
    (folder / "latin.ttf").write_bytes(fonts.load_default(12).font_bytes)
    rng = np.random.default_rng(0)
    for split, num in (("train", 12), ("valid", 3)):
        texts = [" ".join(rng.choice(["word", "sea", "tilt", "a", "moon", "long"], 120)) for _ in range(num)]
        (folder / f"{split}.txt").write_text("\n\n".join(texts), "utf-8")
    data = [f"data.{name}={folder}/{file}" for name, file in DATA.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRETRAINKIT_CACHE", str(folder / "cache"))
        pretrainkit.train(pretrainkit.load_config("pixel/tiny", [*data, *SETTINGS]), folder / "whole")
        yield folder / "whole"


def test_a_run_resumed_in_the_middle_ends_with_the_same_weights(run: Path, tmp_path: Path) -> None:
    assert_resumes_exactly(run, tmp_path / "half")


@pytest.mark.parametrize("format", ["huggingface", "safetensors"])
def test_an_export_is_the_run(run: Path, tmp_path: Path, format: str) -> None:
    assert_exports_are_the_run(run, tmp_path, "pixel", format)


def test_an_export_of_a_run_with_white_zeros_is_that_run(run: Path, tmp_path: Path) -> None:
    """transformers lacks them, and the bias is rounded on the way: its digits are stored beside it."""
    pretrainkit.train(
        pretrainkit.load_config(run / "config.yaml", ["model.pixel_zero=white", "num_steps=1"]), tmp_path / "white"
    )
    assert_exports_are_the_run(tmp_path / "white", tmp_path, "pixel")
    assert pretrainkit.open_model(tmp_path / "export").config.model.pixel_zero == "white"


@pytest.mark.parametrize("preset", ["pixel/tiny", "pixel/small", "pixel/base"])
def test_an_export_of_another_preset_is_the_run(run: Path, tmp_path: Path, preset: str) -> None:
    """pixel/tiny has rotary positions, which are exported as the message for the other format advises."""
    data = [f"data.{name}={run.parent}/{file}" for name, file in DATA.items()]
    grid = ("model.positions=grid", "model.rotary_theta=10000") if preset == "pixel/tiny" else ()
    own = [
        *(word for word in SETTINGS if word not in grid),
        "model.num_heads=2",
        "model.decoder_num_heads=2",
        "num_steps=1",
    ]
    pretrainkit.train(pretrainkit.load_config(preset, [*data, *own, "evaluate.every_steps=null"]), tmp_path / "run")
    if preset == "pixel/tiny":
        with pytest.raises(InputError, match="--format safetensors"):
            pretrainkit.export(tmp_path / "run", "huggingface", tmp_path / "none")
    assert_exports_are_the_run(
        tmp_path / "run", tmp_path, "pixel", "safetensors" if preset == "pixel/tiny" else "huggingface"
    )


def test_positions_stay_as_they_are_and_all_else_is_trained(run: Path) -> None:
    first, last = weights(run, 3), weights(run)
    for name, tensor in last.items():
        assert torch.equal(tensor, first[name]) == ("position_embedding" in name), name


def test_samples_show_original_masked_and_drawn_text(run: Path) -> None:
    samples = json.loads((run / "samples.json").read_text("utf-8"))
    assert samples
    for sample in samples:
        assert list(sample) == ["original", "masked", "reconstructed"]
        pictures = [cell[0]["image"] for cell in sample.values()]
        assert all(re.match(r"data:image/jpeg;base64,", picture) for picture in pictures)
        assert len(set(pictures)) == 3


def test_every_evaluation_leaves_pictures_and_the_report_shows_them(run: Path, tmp_path: Path) -> None:
    files = sorted((run / "samples").iterdir())
    assert [path.name for path in files] == ["step-00000003.json", f"step-{STEPS:08d}.json"]
    first, last = (json.loads(path.read_text("utf-8")) for path in files)
    assert [len(first), len(last)] == [2, 2]
    for before, after in zip(first, last, strict=True):
        assert before["masked"] == after["masked"]
        assert before["reconstructed"] != after["reconstructed"]
    assert "Samples while training" in write_report(run, tmp_path / "report.html").read_text("utf-8")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    assert "samples/reconstructed/1" in found.Tags()["images"]


def test_an_export_is_read_again_with_the_same_weights(run: Path, tmp_path: Path) -> None:
    pretrainkit.export(run, "huggingface", tmp_path / "exported")
    config, state = RECIPE.import_huggingface(tmp_path / "exported")
    model = pretrainkit.load_model(run)
    assert config.model.max_patches == 36
    assert (tmp_path / "exported" / "text_renderer_config.json").is_file()
    assert (tmp_path / "exported" / "latin.ttf").is_file()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_the_quick_start_ends_in_an_export_that_transformers_loads(
    latin_font: str,
    tmp_path: Path,
    transformers: object,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """`transformers` is imported here, where it works beside any torchvision."""
    page = Path(pretrainkit.__file__).parent / "recipes" / "pixel" / "README.md"
    (tmp_path / "my_text").mkdir()
    for number in range(8):
        (tmp_path / "my_text" / f"{number}.txt").write_text(f"words of text number {number} " * 200, "utf-8")
    shutil.copy(latin_font, tmp_path / "NotoSans-Regular.ttf")
    monkeypatch.chdir(tmp_path)
    block = page.read_text("utf-8").partition("```bash\n")[2].partition("```")[0]
    for program, *words in (shlex.split(line, comments=True) for line in block.splitlines()):
        assert program == "pretrainkit"
        if words[0] == "train":
            words += ["num_steps=2", "schedule.num_warmup_steps=1", "evaluate.num_examples=2"]
        ended = run_here(words)
        assert ended.code == 0, ended.err
    expected = run_here(["evaluate", "runs/pixel"]).out
    assert ended.out == expected
    refused = run_here(["evaluate", "exported"])
    advice = followed(refused.err.partition("error: ")[2], "recipes/pixel/source.py: data.train names no data")
    assert run_here(["evaluate", "exported", advice.split()[-1].replace("FOLDER", "my_text")]).out == expected
    name, given = re.search(r"# (\w+)\.from_pretrained\(\"(\w+)\"\)$", block, re.MULTILINE).groups()
    assert type(getattr(transformers, name).from_pretrained(given)).__name__ == "ViTMAEForPreTraining"


def test_a_preset_of_the_quick_start_has_the_outputs_of_transformers(tmp_path: Path, transformers: object) -> None:
    from pretrainkit.exporting.native import write_native

    config = pretrainkit.load_config("pixel/tiny-grid")
    torch.manual_seed(0)
    write_native(config, RECIPE.build_model(config), None, tmp_path / "model")
    assert pretrainkit.api.difference_from_huggingface(tmp_path / "model") < 1e-4
    pretrainkit.export(tmp_path / "model", "huggingface", tmp_path / "exported")
    assert json.loads((tmp_path / "exported" / "config.json").read_text("utf-8"))["model_type"] == "vit_mae"
