"""Evaluation on held-out images: metrics, codebook usage, errors of the mean image, and pictures for the report.

Dimensions: B images, K codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from pretrainkit.data.order import Order
from pretrainkit.data.source import BatchSource, Records
from pretrainkit.dist.env import World
from pretrainkit.eval.evaluator import batches_of_rank, evaluate, evaluation_mode
from pretrainkit.images.pillow import thumbnail
from pretrainkit.recipes.capabilities import Evaluator, StoredRecord
from pretrainkit.recipes.image_tokenizer.codec import as_pictures, values_of
from pretrainkit.recipes.image_tokenizer.config import ImageTokenizerRun
from pretrainkit.recipes.image_tokenizer.model import ImageTokenizer, Pass, prepared
from pretrainkit.recipes.image_tokenizer.objective import ImageTokenizerObjective
from pretrainkit.recipes.image_tokenizer.source import ImageSource, open_source
from pretrainkit.tasks.rates import spread
from pretrainkit.training.objective import HostBatch
from pretrainkit.training.precision import Precision
from pretrainkit.training.watch import Sample

_SHOWN = 128
"""Height of a picture of a training image, in pixels."""
_MEAN_OF, _MEAN_BATCH = 512, 16
"""Number of training images in the mean image, and how many of them are read at once."""


class _Counting(ImageTokenizerObjective):
    """An objective that also counts the ids of the first `num_counted` batches."""

    def __init__(self, config: ImageTokenizerRun, num_counted: int) -> None:
        super().__init__(config)
        self.counts_K = np.zeros(config.model.vocab_size, np.int64)
        self._num_left = num_counted

    def seen(self, result: Pass) -> None:
        if self._num_left > 0:
            ids = result.quantized.ids.reshape(-1)
            self.counts_K += torch.bincount(ids, minlength=len(self.counts_K)).cpu().numpy()
        self._num_left -= 1


def _batches(source: ImageSource, num: int, size: int, numbers: Iterable[int] | None = None) -> Iterator[HostBatch]:
    """Yield the first `num` images of a fixed shuffle in batches of `size`. `numbers` selects batches; None: all."""
    order = Order(source.sizes, seed=0)
    for number in range(-(-num // size)) if numbers is None else numbers:
        yield source.build(order.records(np.arange(number * size, min((number + 1) * size, num))))


def build_evaluator(config: ImageTokenizerRun, world: World, precision: Precision) -> Evaluator:
    """Return an evaluator on the first `evaluate.num_examples` of a fixed shuffle of the held-out images.

    Each image is scored once, and the batches do not depend on the number of ranks. The metrics include
    `codebook_usage`, the share of ids that occur among the tokens, and `codebook_perplexity`, exp(entropy of the
    ids)."""
    source = open_source(config, "valid")
    num_examples, size = min(config.evaluate.num_examples, sum(source.sizes)), config.evaluate.batch_size
    numbers, num_counted = batches_of_rank(-(-num_examples // size), world)

    def held_out(model: nn.Module) -> dict[str, float]:
        objective, batches = _Counting(config, num_counted), _batches(source, num_examples, size, numbers)
        metrics = evaluate(objective, model, batches, precision=precision, world=world, num_counted=num_counted)
        counts_K = np.sum(world.gather_objects(objective.counts_K.tolist()), axis=0)
        share_K = counts_K[counts_K > 0] / counts_K.sum()
        metrics["codebook_usage"] = float((counts_K > 0).mean())
        metrics["codebook_perplexity"] = float(np.exp(-(share_K * np.log(share_K)).sum()))
        return dict(sorted(metrics.items()))

    return held_out


def mean_image_errors(config: ImageTokenizerRun) -> dict[str, float]:
    """Return the errors of the mean image as a prediction of every held-out image. The mean is over at most 512
    training images; for classes it is the most frequent class of each pixel. Names are those of the held-out metrics
    with the prefix mean_image_."""
    domain, objective = config.model.domain, ImageTokenizerObjective(config)
    valid, train_source = open_source(config, "valid"), open_source(config, "train")
    train = ImageSource(config, "valid", train_source.sets, train_source.folders)
    total, num = torch.zeros(()), min(_MEAN_OF, sum(train.sizes))
    for batch in _batches(train, num, _MEAN_BATCH):
        for image in prepared(torch.from_numpy(batch["image"]), config.model):
            classes = domain.num_classes
            total = total + (image if classes is None else F.one_hot(image, classes).permute(2, 0, 1).float())
    # For masks, `errors` expects logits: a mean above 0.5 becomes a positive logit.
    mean = total / num - (0.5 if domain.kind == "mask" else 0.0)
    sums: dict[str, float] = {}
    num = min(config.evaluate.num_examples, sum(valid.sizes))
    for batch in _batches(valid, num, _MEAN_BATCH):
        values = prepared(torch.from_numpy(batch["image"]), config.model)
        for name, error_B in objective.errors(mean[None].expand(len(values), *mean.shape), values).items():
            sums[name] = sums.get(name, 0.0) + float(error_B.sum())
    return {f"mean_image_{name}": value / num for name, value in sums.items()}


@torch.no_grad()
def sample(config: ImageTokenizerRun, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
    """Return `num` images, evenly spread over the first held-out set, as pictures `input` and `reconstruction`."""
    assert isinstance(model, ImageTokenizer)
    size = source.sizes[0]
    if not size:
        return []
    batch = source.build(Records.of_first_epoch(spread(size, num)))
    device, domain = next(model.parameters()).device, config.model.domain
    with evaluation_mode(model):
        values = prepared(torch.from_numpy(batch["image"]).to(device), config.model)
        keys = torch.from_numpy(batch["key"]).to(device)
        reconstruction = values_of(model.decode(model.encode(values).codes_BDhw, keys), domain)
    pictures = as_pictures(torch.cat((values, reconstruction)), domain)
    return [
        {"input": [{"image": thumbnail(original)}], "reconstruction": [{"image": thumbnail(decoded)}]}
        for original, decoded in zip(pictures[: len(values)], pictures[len(values) :], strict=True)
    ]


def show_examples(config: ImageTokenizerRun, source: ImageSource, records: Records) -> list[Sample]:
    """Return pictures of the images, cropped and resized."""
    values = prepared(torch.from_numpy(source.build(records)["image"]), config.model)
    size = f"picture of {values.shape[-2]} x {values.shape[-1]} pixels"
    pictures = as_pictures(values, config.model.domain)
    return [{"image": [{"image": thumbnail(picture, _SHOWN, format="PNG"), "text": size}]} for picture in pictures]


def stored_records(source: ImageSource, records: Records) -> list[StoredRecord]:
    """Return the files of the images."""
    stored = []
    for number, index in zip(records.source.tolist(), records.index.tolist(), strict=True):
        samples, folder = source.sets[number], source.folders[number]
        stored.append(StoredRecord(samples.name(folder, index), "", samples.read(folder, index)))
    return stored
