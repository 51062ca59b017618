"""Characters are read from pictures with the renderer's own glyphs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pretrainkit
from pretrainkit.recipes.pixel.objective import target_pixels
from pretrainkit.recipes.pixel.reading import read_characters
from pretrainkit.recipes.pixel.source import open_source
from pretrainkit.rendering import Renderer, RendererConfig, save_renderer
from pretrainkit.training.precision import resolve_precision
from pretrainkit.training.run import PrecisionConfig
from support.page_runner import run_here

pytest.importorskip("freetype", reason="needs the package freetype-py to draw text")

WORDS = ("word", "sea", "tilt", "a", "moon", "long", "Quartz", "jab", "fly", "Knee", "zip", "7", "box.", "we")


class Drawn(nn.Module):
    """A model that draws a function of the true patches."""

    def __init__(self, change: Callable[[Tensor], Tensor], *, is_normalized: bool) -> None:
        super().__init__()
        self.change, self.is_normalized = change, is_normalized

    def forward(self, batch: dict[str, Tensor], num_patches: int) -> Tensor:
        patches_KS1 = target_pixels(batch["target_patches"], 16, is_normalized=self.is_normalized)
        return self.change(patches_KS1.expand(-1, -1, 3).flatten(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text and a font, which is not monospaced."""
    folder = tmp_path_factory.mktemp("reading")
    fonts = pytest.importorskip("PIL.ImageFont")
    (folder / "latin.ttf").write_bytes(fonts.load_default(12).font_bytes)
    rng = np.random.default_rng(0)
    for split, num in (("train", 8), ("valid", 6)):
        texts = [" ".join(rng.choice(WORDS, 120)) for _ in range(num)]
        (folder / f"{split}.txt").write_text("\n\n".join(texts), "utf-8")
    return folder


def read(
    folder: Path, change: Callable[[Tensor], Tensor], *, strategy: str = "words", **settings: str
) -> dict[str, float]:
    config = RendererConfig(font_file=str(folder / "latin.ttf"), strategy=strategy, max_seq_length=48)  # type: ignore[arg-type]
    if not (folder / strategy).exists():
        save_renderer(Renderer(config), folder / strategy)
    given = {"data.train": folder / "train.txt", "data.valid": folder / "valid.txt", "data.renderer": folder / strategy}
    run = pretrainkit.load_config(
        "pixel/tiny", [f"{name}={value}" for name, value in {**given, "data.max_patches": 48, **settings}.items()]
    )
    model = Drawn(change, is_normalized=run.objective.normalize_target)
    return read_characters(
        run, model, open_source(run, "valid"), resolve_precision(PrecisionConfig(), torch.device("cpu"))
    )


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(folder / "cache"))


@pytest.mark.parametrize("strategy", ["words", "continuous"])
@pytest.mark.parametrize("is_normalized", ["true", "false"])
def test_characters_of_true_pictures_are_read(folder: Path, strategy: str, is_normalized: str) -> None:
    found = read(folder, lambda true: true, strategy=strategy, **{"objective.normalize_target": is_normalized})
    assert found["character_accuracy"] == found["readable_accuracy"] > 0.97
    assert 0.05 < found["most_frequent_accuracy"] < 0.6


def test_faint_letters_are_read_and_others_are_not(folder: Path) -> None:
    noise = torch.Generator().manual_seed(0)
    faint = read(folder, lambda true: 0.3 * true + 0.05 * torch.randn(true.shape, generator=noise))
    blank = read(folder, torch.zeros_like)
    mirrored = read(folder, lambda true: true.view(-1, 16, 16, 3).flip(2).flatten(1))
    assert faint["character_accuracy"] > 0.9
    assert blank["character_accuracy"] < 0.3
    assert mirrored["character_accuracy"] < 0.4
    assert faint["readable_accuracy"] == blank["readable_accuracy"]


def test_rows_without_text_have_no_metrics(folder: Path) -> None:
    for name, options in (("without", ()), ("with", ("--column", "text"))):
        words = ["render", f"{folder}/valid.txt", "--renderer", f"{folder}/latin.ttf", "--max-patches", "48", *options]
        assert not run_here([*words, "--out", f"{folder}/{name}"]).code
    found = {
        name: read(
            folder,
            lambda true: true,
            **{"data.train": f"{folder}/{name}/train", "data.valid": f"{folder}/{name}/train", "data.renderer": "null"},
        )
        for name in ("without", "with")
    }
    assert not found["without"]
    assert found["with"]["readable_accuracy"] > 0.97


def test_a_font_that_is_missing_on_this_machine_costs_the_metrics_alone(folder: Path, tmp_path: Path) -> None:
    words = [
        "render",
        f"{folder}/valid.txt",
        "--renderer",
        f"{folder}/latin.ttf",
        "--max-patches",
        "48",
        "--column",
        "text",
    ]
    assert not run_here([*words, "--out", f"{tmp_path}/rows"]).code
    given = {"data.train": f"{tmp_path}/rows/train", "data.valid": f"{tmp_path}/rows/train", "data.renderer": "null"}
    assert read(folder, lambda true: true, **given)
    (font,) = (tmp_path / "rows/train/renderer").glob("*.ttf")
    font.unlink()
    assert not read(folder, lambda true: true, **given)
