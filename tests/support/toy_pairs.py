"""A small dual encoder and batches of pairs, for tests of the loss and of everything around it.

Dimensions: B pairs, T tokens, D embedding width.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrainkit.data.source import BatchSource, Records
from pretrainkit.recipes.clip.config import (
    ClipDataConfig,
    ClipObjectiveConfig,
    ClipRun,
    ClipSourceConfig,
    TemperatureConfig,
)
from pretrainkit.recipes.clip.losses import ScoreProducts
from pretrainkit.recipes.clip.model import Temperature
from pretrainkit.recipes.clip.presets import PRESETS
from pretrainkit.recipes.clip.source import mixup_of_step
from pretrainkit.rng import fold, uniform

VOCAB = 13
SIZE = 4


class ToyEncoder(nn.Module):
    """Two small networks with dropout, a learned temperature, and for the sigmoid loss a bias."""

    def __init__(self, loss: str = "infonce", *, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Linear(3 * SIZE * SIZE, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, width))
        self.embedding = nn.Embedding(VOCAB, 16)
        self.text = nn.Sequential(nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, width))
        self.temperature = Temperature(TemperatureConfig(kind="parameter", value=0.2, smallest=0.001))
        self.logit_bias = nn.Parameter(torch.zeros(1)) if loss == "siglip" else None
        self.score_products = ScoreProducts()

    def blocks(self) -> list[nn.Module]:
        return [self.image, self.text]

    def logit_scale(self) -> Tensor:
        return self.temperature.logit_scale()

    def project_temperature(self) -> None:
        self.temperature.project()

    def forward(self, image=None, input_ids=None, num_tokens=None, *, image_share=None, text_share=None):
        pixels_BF = (image.to(self.embedding.weight.dtype) / 255).flatten(1)
        found = {"image": self.image(mixed(pixels_BF, image_share))}
        is_real_BT = torch.arange(input_ids.shape[1])[None] < num_tokens[:, None]
        words_BTF = self.embedding(input_ids.long()) * is_real_BT[:, :, None]
        found["text"] = mixed(self.text(words_BTF.sum(1)), text_share)
        return {name: F.normalize(x_BD, dim=-1) for name, x_BD in found.items()}


def mixed(x_BF: Tensor, share: Tensor | None) -> Tensor:
    return x_BF if share is None else share * x_BF + (1 - share) * x_BF.flip(0)


class ToyPairs(BatchSource):
    """Pairs computed from their set and index alone, with noise from their key; captions longer in the second set."""

    def __init__(self, config: ClipRun, sizes: tuple[int, ...] = (37, 21)) -> None:
        self._config, self._sizes = config, sizes

    @property
    def sizes(self) -> tuple[int, ...]:
        return self._sizes

    @property
    def fingerprint(self) -> str:
        return "toy pairs"

    def lengths(self, records: Records) -> np.ndarray:
        return np.full(len(records), 5, np.int64)

    def of_step(self, step: int) -> dict[str, np.ndarray]:
        mixup = self._config.objective.mixup
        return {} if mixup is None else {"mixup": mixup_of_step(mixup, step)}

    def build(self, records: Records) -> dict[str, np.ndarray]:
        fixed = fold(fold(7, records.source), records.index)
        pixels = uniform(fixed, 3 * SIZE * SIZE) * 250 + uniform(records.key, 3 * SIZE * SIZE) * 5
        num_tokens = (2 + records.index % 3 + records.source).astype(np.int32)
        ids = (uniform(fold(fixed, 1), 6) * VOCAB).astype(np.int32)
        ids[np.arange(6) >= num_tokens[:, None]] = 0
        return {
            "image": pixels.astype(np.uint8).reshape(-1, 3, SIZE, SIZE),
            "input_ids": ids,
            "num_tokens": num_tokens,
            "image_group": records.index // 2 + 1000 * records.source,
            "caption_group": ids.astype(np.int64) @ VOCAB ** np.arange(6),
            "bad": (records.index % 5 == 0).astype(np.int8) * 2,
        }


def toy_config(objective: dict | None = None, data: dict | None = None, **run) -> ClipRun:
    """A config of the recipe; the model is the toy's, for any settings of towers."""
    config = PRESETS["tiny"]()
    sets = (ClipSourceConfig(path="sets/first"), ClipSourceConfig(path="sets/second"))
    changed = {
        "objective": ClipObjectiveConfig(**(objective or {})),
        "data": ClipDataConfig.model_validate(
            {**config.data.model_dump(), "train": sets, "batch_size": 12, "num_workers": 0, **(data or {})}
        ),
        **run,
    }
    return config.model_copy(update=changed)


def batch_of(config: ClipRun, num: int = 12, seed: int = 0, step: int = 0) -> dict[str, Tensor]:
    """`num` pairs drawn at random, which may include equal ones."""
    rng = np.random.default_rng(seed)
    index = rng.integers(0, 20, num)
    source = ToyPairs(config)
    records = Records(rng.integers(0, 2, num), np.zeros(num, np.int64), index, index.astype(np.uint64))
    return to_tensors({**source.build(records), **source.of_step(step)})


def to_tensors(batch: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in batch.items()}


def cut(batch: dict[str, Tensor], sizes: list[int]) -> list[dict[str, Tensor]]:
    """Consecutive slices of these sizes; values of the step are in each."""
    ends = np.cumsum(sizes)
    assert ends[-1] == len(batch["image"])
    return [
        {name: t if name == "mixup" else t[end - size : end] for name, t in batch.items()}
        for size, end in zip(sizes, ends, strict=True)
    ]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {n.removeprefix("module."): p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def relative_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference of any parameter's gradient, over that gradient's largest element."""
    assert found.keys() == expected.keys()
    pairs = [(found[name], value) for name, value in expected.items()]
    return max(((f - e).abs().max() / e.abs().max().clamp(min=1e-30)).item() for f, e in pairs)
