"""Classifier of the things in photographs of the demo's scenes. It is trained on true photographs only, and then tells
which things a generated photograph shows.

Dimensions: N photographs, H x W pixels.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.demo.rooms import COLORS, KINDS, Scene
from pretrainkit.images.pillow import Pixels

_SIZES = (len(KINDS), len(COLORS)) * 2
"""Number of classes of each label."""
_NUM_ROUNDS, _BATCH_SIZE, _PEAK_RATE = 4, 32, 3e-3
_NOISE = 0.1
"""Deviation of the noise in training, for pixels from -1 to 1."""
_NUM_MODELS = 4
"""One alone is sure of true photographs, but with another seed it sees other things in those with ragged shapes."""


def labels_of(scenes: Sequence[Scene]) -> NDArray[np.int64]:
    """Return kind and colour of the left thing, then of the right thing, as numbers (N, 4)."""
    names = [[name for thing in scene.things for name in (thing.kind, thing.color)] for scene in scenes]
    numbers = {name: number for values in (KINDS, COLORS) for number, name in enumerate(values)}
    return np.array([[numbers[name] for name in row] for row in names])


def train_classifier(rgb_NHW3: Pixels, scenes: Sequence[Scene]) -> Callable[[Pixels], NDArray[np.int64]]:
    """Return a function from photographs to labels (see `labels_of`), trained on true photographs of `scenes`."""
    torch.manual_seed(0)
    pixels, labels_N4 = _scaled(rgb_NHW3), torch.from_numpy(labels_of(scenes))
    models = [_trained(pixels, labels_N4) for _ in range(_NUM_MODELS)]

    @torch.no_grad()
    def classify(rgb_NHW3: Pixels) -> NDArray[np.int64]:
        pixels = _scaled(rgb_NHW3)
        parts = [part.softmax(1) for model in models for part in model(pixels).split(_SIZES, 1)]
        return np.stack([sum(parts[n :: len(_SIZES)]).argmax(1).numpy() for n in range(len(_SIZES))], 1)

    return classify


def _trained(pixels: Tensor, labels_N4: Tensor) -> nn.Module:
    side = pixels.shape[2] // 8
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1)),
        *(nn.ReLU(), nn.Flatten(), nn.Linear(64 * side * side, sum(_SIZES))),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    num_steps = _NUM_ROUNDS * len(pixels) // _BATCH_SIZE
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _PEAK_RATE, total_steps=num_steps)
    for _ in range(num_steps):
        chosen = torch.randint(len(pixels), (_BATCH_SIZE,))
        batch = pixels[chosen] + _NOISE * torch.randn(_BATCH_SIZE, *pixels.shape[1:])
        parts = model(batch).split(_SIZES, 1)
        loss = torch.stack([F.cross_entropy(part, labels_N4[chosen, n]) for n, part in enumerate(parts)]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


def _scaled(rgb_NHW3: Pixels) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rgb_NHW3.transpose(0, 3, 1, 2))).float() / 127.5 - 1
