"""Examples of the PIXEL recipe: build packed batches with masks from rows of rendered text, for any list of records.

Dimensions: B examples, P pixels per side of a patch, N patches of the longest row of a batch, C = 3 colours (absent in
greyscale).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.source import BatchSource, Records
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.pixel.augment import Augmenter, FontChoice
from pretrainkit.recipes.pixel.batch import pack
from pretrainkit.recipes.pixel.config import PixelAugmentConfig, PixelRun
from pretrainkit.recipes.pixel.masking import draw_masks
from pretrainkit.recipes.pixel.rows import Rows, StoredRows, open_rows
from pretrainkit.recipes.recipe import Split
from pretrainkit.rendering.folder import open_renderer
from pretrainkit.rendering.identity import describe
from pretrainkit.rng import fold, stream_key, uniform

_logger = logging.getLogger(__name__)
_VALID = stream_key(0, "pixel", "valid")
_HELD_OUT = stream_key(0, "pixel", "held out")
_NEIGHBOURS = 64
"""Number of rows that are held out together, because neighbouring rows are often from the same document."""


@dataclass(frozen=True)
class Examples:
    """Rows and their masks."""

    pixels: NDArray[np.uint8]
    """uint8 (B, P, N * P) or (B, P, N * P, C), white after each end patch."""
    num_text_patches_B: NDArray[np.int32]
    """Number of patches before each end patch."""
    is_masked_BN: NDArray[np.bool_]
    """True for hidden patches."""


class PixelSource(BatchSource):
    """Rows of all components.

    A mask is drawn for the whole canvas, from only the record's key and the length of its text, and then cut to the
    batch. So it does not depend on the other rows of a batch or on padding. "valid" ignores the records' keys, so that
    a row always has the same mask, independent of epoch and seed.
    """

    def __init__(self, config: PixelRun, split: Split, components: Sequence[Rows]) -> None:
        """`config` must be bound. `components` are in its order, without the rows that are left out."""
        self.config, self.split, self.components = config, split, tuple(components)
        self._augmenter = Augmenter(config.data.augment if split == "train" else PixelAugmentConfig())
        if (temperature := config.data.temperature) != 1:
            rates = [size ** (1 / temperature) for size in self.sizes]
            self.weights = [max(round(rate / sum(rates), 4), 1e-4) for rate in rates]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of rows of each component."""
        return tuple(len(component) for component in self.components)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the rows and of every setting that affects masks or the choice of rows."""
        data, objective = self.config.data, self.config.objective
        parts = [component.fingerprint for component in self.components]
        parts += [self.split, f"{data.max_patches} {data.min_text_patches} {data.held_out_share}"]
        parts.append(objective.model_dump_json(exclude={"normalize_target", "blank_weight"}))
        parts += [augmentation] if (augmentation := self._augmenter.fingerprint) else []
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Figures for logs and the report."""
        lengths = np.concatenate([component.num_patches_N for component in self.components])
        return {
            "fingerprint": self.fingerprint,
            "examples": len(lengths),
            "left_out": sum(len(component.table) - len(component) for component in self.components),
            "mean_text_patches": float(lengths.mean()),
            "fill_rate": float(lengths.mean()) / (self.config.data.max_patches - 1),
            "rows": ", ".join(dict.fromkeys(component.way for component in self.components)),
        }

    @property
    def faster_loading(self) -> str | None:
        """Advice to draw text once."""
        augment = self.config.data.augment
        needs_drawing = augment.fonts or augment.sizes
        if needs_drawing or all(isinstance(component, StoredRows) for component in self.components):
            return None
        return (
            "draw the text once: pretrainkit render TEXT --renderer RENDERER --out FOLDER, and data.train=FOLDER/train"
        )

    def lengths(self, records: Records) -> NDArray[np.int64]:
        """Return the number of patches of each row, including its end patch, int64 (B,)."""
        return self._num_text_patches(records).astype(np.int64) + 1

    def build(self, records: Records) -> dict[str, np.ndarray]:
        """Return a batch of `batch.pack`."""
        examples = self.examples(records)
        return pack(examples.pixels, examples.num_text_patches_B, examples.is_masked_BN, pad_to=self.config.data.pad_to)

    def examples(self, records: Records) -> Examples:
        """Return rows with their masks, before packing."""
        num_text_patches_B = self._num_text_patches(records)
        keys = records.key if self.split == "train" else records.held_out_keys(_VALID)
        is_masked_BL = draw_masks(self.config.objective, keys, num_text_patches_B, self.config.data.max_patches)
        num_patches = int(num_text_patches_B.max(initial=0)) + 1
        pixels = self._pixels(records, num_patches)
        return Examples(pixels, num_text_patches_B, is_masked_BL[:, :num_patches])

    def _num_text_patches(self, records: Records) -> NDArray[np.int32]:
        num_patches_B = np.empty(len(records), np.int32)
        for component, indices in records.by_component(self.components):
            num_patches_B[indices] = component.num_text_patches(
                records.index[indices], self._font_choices(records, indices)
            )
        return num_patches_B

    def _font_choices(self, records: Records, indices: NDArray[np.int64]) -> list[FontChoice] | None:
        """Return random fonts and sizes for rows of the batch; None if they do not vary."""
        return self._augmenter.font_choices(records.key[indices]) if self._augmenter.redraws else None

    def _pixels(self, records: Records, num_patches: int) -> NDArray[np.uint8]:
        P = self.config.model.patch_size
        strips: list[NDArray[np.uint8]] = [np.empty(0, np.uint8)] * len(records)
        for component, indices in records.by_component(self.components):
            strips_of_component = component.strips(records.index[indices], self._font_choices(records, indices))
            if self._augmenter.recolors:
                strips_of_component = self._augmenter.recolored(strips_of_component, records.key[indices])
            for index, strip in zip(indices.tolist(), strips_of_component, strict=True):
                if strip.shape[0] != P:
                    raise DataError(
                        f"{component.name} has a picture of {strip.shape[0]} rows of pixels, and others of {P}\n"
                        "  download or create it again"
                    )
                strips[index] = strip
        colors = (3,) if any(strip.ndim == 3 for strip in strips) else ()
        pixels = np.full((len(records), P, num_patches * P, *colors), 255, np.uint8)
        for row, strip in zip(pixels, strips, strict=True):
            row[:, : strip.shape[1]] = strip if strip.ndim == row.ndim else strip[..., None]
        return pixels


def open_source(config: PixelRun, split: Split) -> PixelSource:
    """Open the examples of a split of a bound config. Raises DataError if no data is given, it is broken, or no row is
    long enough."""
    data = config.data
    is_held_out_part = split == "valid" and not data.valid and data.held_out_share > 0
    sources = data.valid if split == "valid" and not is_held_out_part else data.train
    if is_held_out_part and not sources:
        raise DataError(
            f"data.train names no data from which data.held_out_share={data.held_out_share} could be held out\n"
            "  give it as data.train=FOLDER"
        )
    if not sources:
        raise DataError(f"data.{split} names no data\n  give it as data.{split}=FOLDER")
    components = []
    for source in sources:
        rows = open_rows(source.path, data)
        if data.held_out_share and not data.valid:
            rows.keep(_is_held_out(len(rows), data.held_out_share) == is_held_out_part)
        rows.keep(rows.num_patches_N >= data.min_text_patches)
        if not len(rows):
            raise DataError(
                f"{source.path} has no row with at least {data.min_text_patches} text patches for data.{split}\n"
                "  set data.min_text_patches lower, or leave it out"
            )
        components.append(rows)
    return PixelSource(config, split, components)


def _is_held_out(num_rows: int, share: float) -> NDArray[np.bool_]:
    """Choose the held-out rows, bool (N,), in blocks of neighbouring rows. If there are several blocks, at least one is
    held out."""
    # Each block has a fixed number in [0, 1), so that a larger share holds out the same blocks and further ones.
    blocks = np.arange(-(-num_rows // _NEIGHBOURS))
    number_of_block = uniform(fold(_HELD_OUT, blocks), 1)[:, 0]
    is_held_out = number_of_block < share
    if len(blocks) > 1:
        is_held_out[number_of_block.argmin()] = True
    return np.repeat(is_held_out, _NEIGHBOURS)[:num_rows]


def bind(config: PixelRun) -> PixelRun:
    """Check the config against its data, and return it. Raises ConfigError if settings and data do not fit each other.
    Raises DataError if data is missing or broken, if held-out rows are in the training data, or if data.renderer is not
    the renderer of the rows."""
    if not config.data.train:
        raise DataError("data.train is empty\n  set data.train=FOLDER")
    problems = config.problems()
    if config.data.valid and config.data.held_out_share:
        problems.append(
            f"data.held_out_share={config.data.held_out_share} is only used without data.valid\n  leave one of them out"
        )
    if problems:
        raise ConfigError(problems)
    train = open_source(config, "train")
    sources = [train, *([open_source(config, "valid")] if config.has_held_out_data else [])]
    shared = {rows.fingerprint for rows in train.components} & {
        rows.fingerprint for source in sources[1:] for rows in source.components if config.data.valid
    }
    if shared:
        raise DataError(
            "data.valid names rows that are also in data.train\n"
            "  give other rows, or leave data.valid out and set data.held_out_share=0.01"
        )
    for source in sources:
        for rows in source.components:
            problems += _problems(config, rows)
    if problems:
        raise ConfigError(problems)
    if (augmenter := Augmenter(config.data.augment)).redraws:
        for rows in train.components:
            for choice in augmenter.all_font_choices:
                rows.check(choice)
    rows_by_rendering = {
        rows.rendering: rows.name for source in sources for rows in source.components if rows.rendering
    }
    # A given renderer becomes that of the model, so rows that are already drawn must be drawn by the same renderer.
    renderer_name = config.data.renderer if rows_by_rendering else None
    if (
        renderer_name is not None
        and (renderer_fingerprint := describe(open_renderer(renderer_name))["fingerprint"]) not in rows_by_rendering
    ):
        raise DataError(
            f"data.renderer={renderer_name} ({renderer_fingerprint[:12]}) is not the renderer that drew the rows of "
            + ", ".join(f"{name} ({fingerprint[:12]})" for fingerprint, name in rows_by_rendering.items())
            + "\n  leave data.renderer out, or render the rows again with it"
        )
    for remark in dict.fromkeys(rows.remark for rows in train.components if rows.remark):
        _logger.warning("%s", remark)
    if len(rows_by_rendering) > 1:
        _logger.warning("the rows of %s are drawn by different renderers", ", ".join(rows_by_rendering.values()))
    return config


def _problems(config: PixelRun, rows: Rows) -> list[str]:
    """List the conflicts between settings and rows."""
    problems, data = [], config.data
    longest = int(rows.num_patches_N.max()) + 1
    if longest > data.max_patches:
        problems.append(
            f"{rows.name} has rows of {longest} patches, but data.max_patches is {data.max_patches}\n"
            f"  set data.max_patches={longest}, and model.max_patches to the same or more; or render it again"
        )
    side = rows.strips(np.zeros(1, np.int64))[0].shape[0]
    if side != config.model.patch_size:
        problems.append(
            f"{rows.name} has patches of {side} pixels, but model.patch_size is {config.model.patch_size}\n"
            f"  set model.patch_size={side}, or render it again"
        )
    return problems


def assumed_batch(config: PixelRun, num_examples: int) -> dict[str, np.ndarray]:
    """Return a batch of texts that fill their canvas."""
    num_patches, side = config.data.max_patches, config.model.patch_size
    num_text_patches_B = np.full(num_examples, num_patches - 1, np.int32)
    keys = np.arange(num_examples, dtype=np.uint64)
    is_masked_BL = draw_masks(config.objective, keys, num_text_patches_B, num_patches)
    pixels = np.zeros((num_examples, side, num_patches * side), np.uint8)
    return pack(pixels, num_text_patches_B, is_masked_BL, pad_to=config.data.pad_to)
