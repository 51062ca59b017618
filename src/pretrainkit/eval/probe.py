"""Probing of a frozen image encoder: how well its features separate the classes of a folder.

Dimensions: N images, B images of an update, R rows of a forward pass, F width of the features.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.data import prefetch
from pretrainkit.data.order import Order
from pretrainkit.dist.env import World
from pretrainkit.errors import DataError
from pretrainkit.eval.evaluator import embed_rows, evaluation_mode
from pretrainkit.eval.linear_probe import knn_accuracy, score_heads, train_heads
from pretrainkit.eval.probe_config import Method, ProbeConfig, valid_transforms
from pretrainkit.images.class_folders import ClassFolders, class_folders
from pretrainkit.images.transforms import compose, load_batch
from pretrainkit.training.objective import HostBatch
from pretrainkit.training.precision import Precision


@dataclass(frozen=True)
class ImageEncoder:
    """The part of a trained model that turns images into features, for probing."""

    module: nn.Module
    """Module that computes the features; it is not changed."""
    encode: Callable[[Tensor], Tensor]
    """Function from uint8 (B, 3, H, W) on the module's device to features (B, F), before projection or
    normalization."""
    image_size: int
    """Side length of its input images, in pixels."""


class _Labelled(NamedTuple):
    features_NF: Tensor
    label_N: Tensor


def probe(encoder: ImageEncoder, folder: Path, config: ProbeConfig, precision: Precision) -> dict[str, Any]:
    """Return accuracies in percent on FOLDER/val (or valid, or test), trained on FOLDER/train, both
    FOLDER/SPLIT/CLASS/IMAGE.

    The encoder is not changed: it runs in evaluation mode and without gradient. Raises DataError if a split is missing,
    or their classes differ.

    Returns:
        Metrics of each method; `<set>` is the name of the folder. linear and cached: `<set>_val_acc1` (for cached
        `<set>_cached_val_acc1`) of the best learning rate; its `..._acc5` with more than five classes; the learning
        rate itself, `..._lr`; and with several learning rates `..._acc1_by_lr`. knn: `<set>_knn_acc1`. As is usual, the
        best learning rate is chosen on the images that it is scored on.
    """
    train, valid = _split(folder, ("train",)), _split(folder, ("val", "valid", "test"))
    if train.classes != valid.classes:
        odd = sorted(set(train.classes) ^ set(valid.classes))
        raise DataError(
            f"train and held-out images of {folder} have different classes: {', '.join(odd[:5])}\n"
            "  use the same folders of classes in both"
        )
    name = folder.resolve().name
    metrics: dict[str, Any] = {}
    with evaluation_mode(encoder.module):
        run = _Probe(encoder, config, precision, train, len(train.classes))
        held_out = run.features(valid)
        if "linear" in config.methods:
            metrics |= run.linear("linear", f"{name}_val", held_out)
        if "cached" in config.methods or "knn" in config.methods:
            known = run.features(train)
            if "cached" in config.methods:
                metrics |= run.linear("cached", f"{name}_cached_val", held_out, known)
            if "knn" in config.methods:
                metrics[f"{name}_knn_acc1"] = knn_accuracy(
                    *held_out,
                    *known,
                    num_classes=len(train.classes),
                    num_neighbours=config.num_neighbours,
                    temperature=config.knn_temperature,
                )
    return metrics


@dataclass(frozen=True)
class _Probe:
    encoder: ImageEncoder
    config: ProbeConfig
    precision: Precision
    train: ClassFolders
    num_classes: int

    def features(self, folders: ClassFolders) -> _Labelled:
        """Return the features of every image, without augmentation."""
        transform = compose(valid_transforms(self.encoder.image_size), is_exact=True)

        def build(rows: np.ndarray) -> HostBatch:
            files = [folders.files[row] for row in rows.tolist()]
            return {"image": load_batch(files, transform, rows.astype(np.uint64))}

        device = self.precision.device
        features_NF = embed_rows(
            build,
            lambda batch: self._encode(batch["image"]),
            len(folders.files),
            batch_size=self.config.images_per_pass,
            world=World(device=device),
            num_threads=self.config.num_threads,
        )
        return _Labelled(features_NF, torch.from_numpy(folders.labels_N).to(device))

    def linear(self, method: Method, name: str, held_out: _Labelled, known: _Labelled | None = None) -> dict[str, Any]:
        """Return the metrics of the best learning rate. With `known`, train on these features, not on augmented
        images."""
        config, num_train = self.config, len(self.train.files)
        batch_size = min(config.batch_size, num_train)
        num_steps = max(1, config.num_epochs * num_train // batch_size)
        order = Order([num_train], seed=config.seed)
        plan = (order, batch_size, num_steps)
        batches = self._augmented(*plan) if known is None else _cached(known, *plan)
        rates = config.learning_rates(method)
        width = held_out.features_NF.shape[1]
        heads = train_heads(batches, num_steps, width, self.num_classes, rates, config, self.precision.device)
        scores = score_heads(heads, held_out.features_NF, held_out.label_N)
        best = max(range(len(rates)), key=lambda i: (scores[i].acc1, -i))
        metrics: dict[str, Any] = {f"{name}_acc1": scores[best].acc1}
        if self.num_classes > 5:
            metrics[f"{name}_acc5"] = scores[best].acc5
        metrics[f"{name}_lr"] = rates[best]
        if len(rates) > 1:
            metrics[f"{name}_acc1_by_lr"] = {str(rate): score.acc1 for rate, score in zip(rates, scores)}
        return metrics

    def _augmented(self, order: Order, batch_size: int, num_steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield features of images with new augmentations in each epoch, prepared in threads."""
        transform = compose(self.config.train_transforms(self.encoder.image_size))
        per_pass = min(self.config.images_per_pass, batch_size)
        num_passes = -(-batch_size // per_pass)
        labels_N, files = self.train.labels_N, self.train.files

        def build(number: int) -> tuple[np.ndarray, np.ndarray]:
            step, part = divmod(number, num_passes)
            positions = np.arange(part * per_pass, min((part + 1) * per_pass, batch_size)) + step * batch_size
            records = order.records(positions)
            batch = load_batch([files[row] for row in records.index.tolist()], transform, records.key)
            return batch, labels_N[records.index]

        numbers, threads = range(num_steps * num_passes), self.config.num_threads
        built = prefetch.in_threads(build, numbers, threads, 2 * threads) if threads else map(build, numbers)
        for _ in range(num_steps):
            parts = [next(built) for _ in range(num_passes)]
            features = [self._encode(torch.from_numpy(image).to(self.precision.device)) for image, _ in parts]
            labels = np.concatenate([label for _, label in parts])
            yield torch.cat(features), torch.from_numpy(labels).to(self.precision.device)

    @torch.no_grad()
    def _encode(self, image_R3HW: Tensor) -> Tensor:
        with self.precision.autocast():
            features_RF = self.encoder.encode(image_R3HW)
        return features_RF.float()


def _cached(known: _Labelled, order: Order, batch_size: int, num_steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    for step in range(num_steps):
        rows = order.records(np.arange(step * batch_size, (step + 1) * batch_size)).index
        chosen = torch.from_numpy(rows).to(known.label_N.device)
        yield known.features_NF[chosen], known.label_N[chosen]


def _split(folder: Path, names: tuple[str, ...]) -> ClassFolders:
    for name in names:
        if (folder / name).is_dir():
            return class_folders(folder / name)
    raise DataError(
        f"{folder} has no folder {' or '.join(names)}\n  images are expected in {folder}/{names[0]}/CLASS/IMAGE"
    )
