"""Probing leaves the encoder bit-identical and learns what its features hold, with and without cached features."""

import numpy as np
import pytest
import torch
from torch import nn

PIL = pytest.importorskip("PIL.Image")

from pretrainkit import api  # noqa: E402
from pretrainkit.errors import DataError, InputError  # noqa: E402
from pretrainkit.eval.probe import ImageEncoder, probe  # noqa: E402
from pretrainkit.eval.probe_config import ProbeConfig, valid_transforms  # noqa: E402
from pretrainkit.images.ops import Resize  # noqa: E402
from pretrainkit.training.precision import Precision  # noqa: E402

FLOAT32 = Precision(torch.device("cpu"), torch.float32, uses_tf32=False, scaler=None)
COLOURS = {"blue": (40, 60, 220), "green": (30, 200, 40), "red": (220, 30, 60)}


class Encoder(nn.Module):
    """Mean colours through batch norm and dropout, which would give themselves away in training mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.9))
        self.num_seen = 0

    def forward(self, image):
        assert not self.training
        assert not torch.is_grad_enabled()
        self.num_seen += len(image)
        return self.layers(image.float().mean((2, 3)) / 255)


def make_folder(root, **per_class):
    for split, num in per_class.items():
        rng = np.random.default_rng(len(split))
        for name, colour in COLOURS.items():
            (root / split / name).mkdir(parents=True)
            for i in range(num):
                pixels = np.clip(rng.normal(0, 40, (18, 20, 3)) + colour, 0, 255).astype(np.uint8)
                PIL.fromarray(pixels).save(root / split / name / f"{i}.png")
    return root


def run(folder, **settings):
    encoder = Encoder().train()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    config = ProbeConfig(num_threads=0, images_per_pass=5, **settings)
    found = probe(ImageEncoder(encoder, encoder, 12), folder, config, FLOAT32)
    assert encoder.training, "put back as it was"
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.state_dict().items())
    assert all(parameter.grad is None for parameter in encoder.parameters())
    return found, encoder.num_seen


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("probe") / "colours", train=8, val=4)


def test_cached_features_are_computed_once_for_all_learning_rates(colours):
    found, num_seen = run(colours, num_epochs=60)
    assert num_seen == 24 + 12
    assert found["colours_cached_val_acc1"] == 100
    assert found["colours_knn_acc1"] == 100
    rates = found["colours_cached_val_acc1_by_lr"]
    assert len(rates) == 6
    assert max(rates.values()) == 100
    assert found["colours_cached_val_lr"] == min(float(rate) for rate, accuracy in rates.items() if accuracy == 100)
    assert "colours_cached_val_acc5" not in found


def test_the_faithful_probe_sees_new_crops_in_every_epoch(colours):
    found, num_seen = run(colours, methods=("linear",), num_epochs=20, peak_lr=(100.0,), augment=(Resize(size=12),))
    assert num_seen == 20 * 24 + 12
    assert set(found) == {"colours_val_acc1", "colours_val_lr"}
    assert found["colours_val_acc1"] == 100


def test_the_same_probe_gives_the_same_numbers_with_threads(colours):
    settings = {"methods": ("linear",), "num_epochs": 3, "batch_size": 7, "peak_lr": (3.0, 30.0)}
    alone, _ = run(colours, **settings)
    encoder = Encoder()
    config = ProbeConfig(num_threads=2, images_per_pass=5, **settings)
    assert probe(ImageEncoder(encoder, encoder, 12), colours, config, FLOAT32) == alone


def test_splits_and_classes_must_be_there(tmp_path):
    make_folder(tmp_path / "half", train=1)
    with pytest.raises(DataError, match="has no folder val or valid or test"):
        run(tmp_path / "half")
    make_folder(tmp_path / "odd", train=1, test=1)
    (tmp_path / "odd" / "test" / "red").rename(tmp_path / "odd" / "test" / "rouge")
    with pytest.raises(DataError, match="different classes: red, rouge\n  use the same folders"):
        run(tmp_path / "odd")


def test_images_are_cut_as_published():
    resize, crop = valid_transforms(224)
    assert (resize.size, crop.size) == (256, 224)
    augment = ProbeConfig().train_transforms(224)
    assert (augment[0].scale, augment[1].op) == ((0.08, 1.0), "autoaug")


def test_an_encoder_of_timm_that_cannot_be_had_is_named_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(InputError, match="timm cannot load the encoder timm:vit_of_nobody: Unknown model"):
        api.probe("timm:vit_of_nobody", tmp_path)
