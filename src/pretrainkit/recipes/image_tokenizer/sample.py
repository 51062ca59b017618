"""Held-out images for the report, beside what their tokens give."""

from typing import Any

import numpy as np
import torch
from torch import nn

from pretrainkit.data.source import BatchSource, Records
from pretrainkit.eval.evaluator import evaluation_mode
from pretrainkit.images.thumbnail import thumbnail
from pretrainkit.recipes.image_tokenizer.config import ImageTokenizerRun
from pretrainkit.recipes.image_tokenizer.model import ImageTokenizer, prepared
from pretrainkit.recipes.image_tokenizer.shown import as_pictures, values_of


@torch.no_grad()
def sample(config: ImageTokenizerRun, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
    """`num` images evenly spread over the first held-out set: `input` and `reconstruction`, a picture each."""
    assert isinstance(model, ImageTokenizer)
    size = source.sizes[0]
    if not size:
        return []
    index = np.unique(np.linspace(0, size - 1, num, dtype=np.int64))
    zeros = np.zeros(len(index), np.int64)
    batch = source.build(Records(zeros, zeros, index, zeros.astype(np.uint64)))
    device = next(model.parameters()).device
    domain = config.model.domain
    with evaluation_mode(model):
        values = prepared(torch.from_numpy(batch["image"]).to(device), config.model)
        keys = torch.from_numpy(batch["key"]).to(device)
        made = values_of(model.decode(model.encode(values).codes_BDhw, keys), domain)
    both = as_pictures(torch.cat((values, made)), domain)
    return [
        {"input": [{"image": thumbnail(given)}], "reconstruction": [{"image": thumbnail(found)}]}
        for given, found in zip(both[: len(index)], both[len(index) :], strict=True)
    ]
