"""A tiny pretrained pixel model with its renderer, and settings of short fine-tunings."""

import shutil
from pathlib import Path

import pytest
import torch

from pretrainkit import api
from pretrainkit.exporting.native import write_native
from pretrainkit.recipes.pixel.model import build
from pretrainkit.rendering import Renderer, RendererConfig, save_renderer
from pretrainkit.training.checkpoints.checkpoint import read_weights

STEPS = 6
SMALL = (
    "model.positions=grid",  # the published models'
    "model.hidden_size=32",
    "model.num_layers=2",
    "model.intermediate_size=64",
    "model.decoder_hidden_size=16",
    "model.decoder_num_layers=1",
    "model.decoder_intermediate_size=32",
    "model.initializer_range=0.08",
    "model.max_patches=36",
    "data.max_patches=36",
)
SHORT = (
    "data.max_seq_length=24",
    "data.batch_size=8",
    "data.microbatch_size=4",
    "optimizer.peak_lr=2e-3",
    "schedule.warmup_share=0",
    f"num_steps={STEPS}",
    "checkpoint.every_steps=3",
    "checkpoint.keep_last=9",
    "checkpoint.asynchronous=false",
    "precision.compute=float32",
    "evaluate.num_examples=16",
    "log.every_steps=1",
)


def write_font(folder: Path) -> Path:
    """A font for Latin letters."""
    fonts = pytest.importorskip("PIL.ImageFont")
    font = folder / "latin.ttf"
    font.write_bytes(fonts.load_default(12).font_bytes)
    return font


def write_encoder(folder: Path) -> Path:
    """An export of a pretraining that has not begun."""
    torch.manual_seed(0)
    config = api.load_config("pixel/tiny", SMALL)
    save_renderer(Renderer(RendererConfig(font_file=str(write_font(folder)))), folder / "renderer")
    write_native(config, build(config.model), folder / "renderer", folder / "encoder")
    return folder / "encoder"


def require_exact_resume(run: Path, folder: Path) -> None:
    """A run that continues from its middle ends in the same weights as `run`, which was never interrupted."""
    shutil.copytree(run, folder)
    shutil.rmtree(next((folder / "checkpoints").glob(f"step-*{STEPS}")))
    api.resume(folder, device="cpu")
    whole, resumed = (read_weights(next((path / "checkpoints").glob(f"step-*{STEPS}"))) for path in (run, folder))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())
