"""What is lost where nothing but the mean of the training images is known."""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pretrainkit.data.order import Order
from pretrainkit.recipes.image_tokenizer.config import ImageTokenizerRun
from pretrainkit.recipes.image_tokenizer.model import prepared
from pretrainkit.recipes.image_tokenizer.objective import ImageTokenizerObjective
from pretrainkit.recipes.image_tokenizer.source import ImageSource, open_source

_MOST = 512
_BATCH = 16


def mean_image_errors(config: ImageTokenizerRun) -> dict[str, float]:
    """Errors of held-out images against the mean of at most 512 training images (of classes against the most frequent
    one of each pixel), by the names of held-out metrics with mean_image_ before them."""
    domain, objective = config.model.domain, ImageTokenizerObjective(config)
    valid = open_source(config, "valid")
    own = open_source(config, "train")
    train = ImageSource(config.model, config.data, "valid", own.sets, own.folders, config.seed)
    total, num = torch.zeros(()), 0
    for values in _batches(train, config, _MOST):
        for one in values:
            total = total + (one if domain.num_classes is None else _one_hot(one, domain.num_classes))
        num += len(values)
    mean = total / num - (0.5 if domain.kind == "mask" else 0.0)
    sums: dict[str, float] = {}
    num = 0
    for values in _batches(valid, config, config.evaluate.num_examples):
        made = mean[None].expand(len(values), *mean.shape)
        for name, error_B in objective.errors(made, values).items():
            sums[name] = sums.get(name, 0.0) + float(error_B.sum())
        num += len(values)
    return {f"mean_image_{name}": value / num for name, value in sums.items()}


def _one_hot(classes_HW: Tensor, num: int) -> Tensor:
    """float32 (K, H, W)."""
    return F.one_hot(classes_HW, num).permute(2, 0, 1).float()


def _batches(source: ImageSource, config: ImageTokenizerRun, num: int) -> Iterator[Tensor]:
    order = Order(source.sizes, weights=[None] * len(source.sizes), mode="shuffle", seed=0, batch_size=1)
    num = min(num, sum(source.sizes))
    for start in range(0, num, _BATCH):
        batch = source.build(order.records(np.arange(start, min(start + _BATCH, num))))
        yield prepared(torch.from_numpy(batch["image"]), config.model)
