"""A tiny dual encoder and held-out sets of numbers, for tests of evaluation."""

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.recipes.clip.held_out import ClassSet, PairSet

WIDTH, LENGTH, PIXELS = 8, 5, 6


class ToyEncoder(nn.Module):
    """Counts what it embeds. Two blocks, so that it can be sharded."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.image = nn.Linear(3 * PIXELS * PIXELS, WIDTH)
        self.text = nn.Sequential(nn.Embedding(50, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))
        self.log_scale = nn.Parameter(torch.full((2,), 3.0))
        self.num_images = self.num_captions = self.num_passes = 0
        self.modes: set[bool] = set()

    def blocks(self) -> list[nn.Module]:
        return [self.image, self.text]

    def logit_scale(self) -> Tensor:
        return self.log_scale.exp()[0]

    def forward(self, image=None, input_ids=None, num_tokens=None) -> dict[str, Tensor]:
        assert not torch.is_grad_enabled()
        self.num_passes += 1
        self.modes.add(self.training)
        found = {}
        if image is not None:
            self.num_images += len(image)
            found["image"] = nn.functional.normalize(self.image(image.flatten(1).float() / 255), dim=1)
        if input_ids is not None:
            self.num_captions += len(input_ids)
            is_real = torch.arange(input_ids.shape[1], device=input_ids.device) < num_tokens[:, None]
            found["text"] = nn.functional.normalize((self.text(input_ids) * is_real[..., None]).sum(1), dim=1)
        return found


def toy_pairs(num_images: int = 23, seed: int = 0, name: str = "toy") -> PairSet:
    """Images with 1..7 captions each, rows in random order; pixels of an image are a function of its id."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.repeat(np.arange(num_images) * 2**33, rng.integers(1, 8, num_images)))
    words = rng.integers(0, 50, (len(ids), LENGTH), dtype=np.int32)
    num_tokens = rng.integers(1, LENGTH + 1, len(ids), dtype=np.int32)
    pixels = {i: np.random.default_rng(i).integers(0, 256, (3, PIXELS, PIXELS), np.uint8) for i in set(ids.tolist())}
    return PairSet(
        name=name,
        image_ids_N=ids,
        images=lambda rows: {"image": np.stack([pixels[i] for i in ids[rows].tolist()])},
        captions=lambda rows: {"input_ids": words[rows], "num_tokens": num_tokens[rows]},
        texts=lambda rows: [f"caption {row} of {ids[row]}" for row in rows.tolist()],
    )


def toy_classes(num_images: int = 31, num_classes: int = 6, num_templates: int = 3) -> ClassSet:
    """Images and captions at random."""
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (num_images, 3, PIXELS, PIXELS), np.uint8)
    words = rng.integers(0, 50, (num_classes * num_templates, LENGTH), dtype=np.int32)
    return ClassSet(
        name="things",
        labels_I=rng.integers(0, num_classes, num_images),
        num_classes=num_classes,
        num_templates=num_templates,
        images=lambda rows: {"image": pixels[rows]},
        captions=lambda rows: {"input_ids": words[rows], "num_tokens": np.full(len(rows), LENGTH, np.int32)},
    )
