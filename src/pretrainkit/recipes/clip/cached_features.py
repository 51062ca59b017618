"""Training on the features of frozen towers. All ranks compute them once, and store them in the run folder.

A folder of features has a `manifest.json` and is complete or absent. It has a float32 file per tower and set, with a
row for each distinct image, or for each caption of the set.

Dimensions: N rows of a set, I distinct images or captions, B pairs of a batch, D width of a tower.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pretrainkit.data.source import Records
from pretrainkit.dist.env import World
from pretrainkit.eval.evaluator import BuildRows, evaluation_mode, forward_batches
from pretrainkit.eval.retrieval import first_of_each
from pretrainkit.files.manifest import sync
from pretrainkit.recipes.clip.captions import CaptionTokenizer, tokenizer_folder
from pretrainkit.recipes.clip.checks import Tower, cached_towers
from pretrainkit.recipes.clip.config import ClipRun
from pretrainkit.recipes.clip.held_out import Inputs
from pretrainkit.recipes.clip.model import DualEncoder
from pretrainkit.recipes.clip.open_pairs import open_pairs
from pretrainkit.recipes.clip.pairs import Pairs
from pretrainkit.recipes.clip.pixels import PixelReader
from pretrainkit.recipes.clip.source import ClipSource
from pretrainkit.training.precision import Precision

_MANIFEST = "manifest.json"


class FeatureSource(ClipSource):
    """`ClipSource` with `image_features` (B, D) in place of `image`, or `text_features` in place of `input_ids`."""

    def __init__(
        self, config: ClipRun, sets: Sequence[Pairs], tokenizer: CaptionTokenizer, folder: Path, towers: Sequence[Tower]
    ) -> None:
        super().__init__(config, "train", sets, tokenizer)
        self._folder, self._towers = folder, tuple(towers)
        # A row that replaces another would have the wrong features.
        self._why_strict = "data.cache_frozen needs every row"
        self._features = {
            tower: [np.load(_file(folder, tower, number), mmap_mode="r") for number in range(len(sets))]
            for tower in towers
        }
        self._image_rows = [_image_number(pairs) for pairs in sets] if "image" in towers else []

    def build(self, records: Records) -> dict[str, np.ndarray]:
        batch = super().build(records)
        for tower in self._towers:
            width = self._features[tower][0].shape[1]
            features_BD = np.empty((len(records), width), np.float32)
            for number, own in records.by_component(range(len(self.sets))):
                rows = records.index[own]
                where = self._image_rows[number][rows] if tower == "image" else rows
                features_BD[own] = self._features[tower][number][where]
            del batch["image" if tower == "image" else "input_ids"]
            batch[f"{tower}_features"] = features_BD
        return batch

    def _read(self, pairs: Pairs, row: int, transforms: int, out: NDArray) -> None:
        if "image" not in self._towers:
            super()._read(pairs, row, transforms, out)

    def __reduce__(self) -> Any:
        return open_features, (self.config, self._folder, self._towers)


def open_features(config: ClipRun, folder: Path, towers: tuple[Tower, ...]) -> FeatureSource:
    """Return the source of a bound config with complete features."""
    sets = [open_pairs(source, "train") for source in config.data.train]
    return FeatureSource(config, sets, CaptionTokenizer(tokenizer_folder(config)), folder, towers)


def with_cached_features(
    config: ClipRun,
    source: ClipSource,
    model: Callable[[], DualEncoder],
    cache: Path,
    world: World,
    precision: Precision,
) -> FeatureSource:
    """Compute missing features, and return the source with them. All ranks must call this together. Raises DataError if
    a row of the training data is bad.

    Args:
        config: A bound config.
        model: Returns the model on the device, before training or as last saved. The frozen towers are the same in
            both.
        cache: Folder that holds a folder per `_key`, on a file system that all ranks share. Each rank writes its part.
    """
    towers = tuple(cached_towers(config)[0])
    encoder = model()
    key = world.broadcast_object(_key(encoder, source, towers, precision))
    folder = cache / f"features-{key[:16]}"
    if not world.broadcast_object((folder / _MANIFEST).is_file()):
        partial = cache / f".partial-{key[:16]}"
        world.on_main(lambda: _start(config, encoder, source, partial, towers))
        with evaluation_mode(encoder), torch.no_grad():
            for number, pairs in enumerate(source.sets):
                for tower in towers:
                    _compute(config, encoder, pairs, tower, _file(partial, tower, number), world, precision)
        world.barrier()
        world.on_main(lambda: _finish(partial, folder, {"key": key, "towers": list(towers)}))
    return open_features(config, folder, towers)


def _compute(
    config: ClipRun, model: DualEncoder, pairs: Pairs, tower: Tower, file: Path, world: World, precision: Precision
) -> None:
    out_ID = np.load(file, mmap_mode="r+")

    def forward(batch: dict[str, Tensor]) -> Tensor:
        with precision.autocast():
            if tower == "image":
                return model.image(model.normalized(batch["image"]))
            return model.text(batch["input_ids"], batch["num_tokens"])

    parts = forward_batches(
        _rows(config, pairs, tower),
        forward,
        len(out_ID),
        batch_size=config.evaluate.batch_size,
        world=world,
        num_threads=config.data.loader_workers[1],
    )
    for rows, features_BD in parts:
        out_ID[rows] = features_BD.cpu().numpy()
    out_ID.flush()


def _rows(config: ClipRun, pairs: Pairs, tower: Tower) -> BuildRows:
    """Return the inputs of a tower for the rows of its file."""
    whole = Inputs(config, PixelReader(config.data.train_transforms, config.data.normalize)).pairs(pairs)
    if tower == "text":
        return whole.captions
    first = first_of_each(pairs.image_ids)
    return lambda rows: whole.images(first[rows])


def _image_number(pairs: Pairs) -> NDArray[np.int64]:
    """Return (N,) the row of each pair's image in the file of features, where images are in the order of their first
    pair."""
    _, first, number_N = np.unique(pairs.image_ids, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[
        number_N
    ]  # argsort twice: the position of each image's first pair among all first pairs


def _start(config: ClipRun, model: DualEncoder, source: ClipSource, partial: Path, towers: Sequence[Tower]) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for number, pairs in enumerate(source.sets):
        for tower in towers:
            num_rows = len(first_of_each(pairs.image_ids)) if tower == "image" else len(pairs)
            shape = (num_rows, model.image.width if tower == "image" else model.text.width)
            np.lib.format.open_memmap(_file(partial, tower, number), "w+", np.float32, shape).flush()


def _finish(partial: Path, folder: Path, manifest: dict[str, Any]) -> None:
    (partial / _MANIFEST).write_text(json.dumps(manifest) + "\n", encoding="utf-8")
    for path in [*partial.iterdir(), partial]:
        sync(path)
    partial.rename(folder)
    sync(folder.parent)


def _file(folder: Path, tower: Tower, number: int) -> Path:
    return folder / f"{tower}-{number}.npy"


def _key(model: DualEncoder, source: ClipSource, towers: Sequence[Tower], precision: Precision) -> str:
    """Return a hash of everything that affects the features: weights of the towers, pairs, settings and precision."""
    state = hashlib.blake2b(digest_size=16)
    state.update(f"{source.fingerprint} {precision.name} {model.mean_and_deviation}".encode())
    for tower in towers:
        module: nn.Module = model.image if tower == "image" else model.text
        for name, tensor in module.state_dict().items():
            state.update(f"{tower} {name} {tuple(tensor.shape)}".encode())
            state.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return state.hexdigest()
