"""Data source of the CLIP recipe: builds batches of any records of sets of image-text pairs.

Dimensions: B pairs, T tokens of the longest caption, H x W pixels.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.order import Mode, Order
from pretrainkit.data.source import BatchSource, Records
from pretrainkit.data.turns import Debias
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.clip import checks
from pretrainkit.recipes.clip.architecture import bind_model
from pretrainkit.recipes.clip.captions import CaptionAugment, CaptionTokenizer, tokenizer_folder
from pretrainkit.recipes.clip.config import ClipRun, MixupConfig
from pretrainkit.recipes.clip.open_pairs import open_pairs
from pretrainkit.recipes.clip.pairs import REASONS, BadImage, BadRows, Pairs, Split
from pretrainkit.recipes.clip.pixels import PixelReader
from pretrainkit.rng import fold, stream_key, uniform

_VALID = stream_key(0, "clip", "valid")
_IMAGE, _CAPTION, _CAPTION_COLUMN, _REPLACEMENT = range(4)
"""Numbers of the random streams of an example."""
_MAX_REPLACEMENTS = 100
_FEWEST_STEPS = 1024


class ClipSource(BatchSource):
    """Source of all pairs of all sets.

    A batch has `image` uint8 (B, 3, H, W), RGB, or normalized float32 with random erasing; `input_ids` int32 (B, T);
    `num_tokens` int32 (B,); `image_group` and `caption_group` int64 (B,), which are equal for rows with the same image
    or caption; and `bad` int8 (B,), the reason for which a row was replaced (index of `pairs.REASONS`).

    Crops, augmented captions and replacements depend only on the records' keys. The split "valid" uses fixed keys, so
    that evaluations of different runs and steps can be compared.
    """

    def __init__(self, config: ClipRun, split: Split, sets: Sequence[Pairs], tokenizer: CaptionTokenizer) -> None:
        """Create the source of a bound config. `sets` are in the order of the config."""
        data = config.data
        self.config, self.split, self.sets, self.tokenizer = config, split, tuple(sets), tokenizer
        self._ops = data.train_transforms if split == "train" else data.valid_transforms
        self._is_fast = data.fast_decoding and split == "train"
        self._pixels = PixelReader(self._ops, data.normalize, is_exact=split == "valid", is_fast=self._is_fast)
        augment = data.text_augment if split == "train" else None
        self._augment = None if augment is None else CaptionAugment(augment, tokenizer)
        self._why_strict = "data.on_bad_sample is error" if data.on_bad_sample == "error" else ""
        """Reason for which a bad row is an error; empty if another row replaces it."""
        if split == "valid":
            self._why_strict = "evaluation needs every row"
        self._bad = [BadRows(pairs, data.max_bad_fraction) for pairs in sets]
        self._image_salts = np.array([stream_key(0, "image", pairs.path) for pairs in sets], np.uint64)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.sets))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of names, captions and every setting that affects a batch, but not of the content of images."""
        data = self.config.data
        parts = [pairs.fingerprint for pairs in self.sets]
        parts += [self.split, self.tokenizer.fingerprint, str(data.max_length), data.on_bad_sample]
        parts += [op.model_dump_json() for op in self._ops]
        parts += ["fast decoding"] if self._is_fast else []
        if self._augment is not None:
            parts.append(self._augment.config.model_dump_json())
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Return statistics for logs and the report. `remainder` is the number of pairs that do not fill a last
        batch."""
        batch_size = self.config.data.batch_size
        sets = [
            {
                "name": pairs.name,
                "pairs": len(pairs),
                "batches": len(pairs) // batch_size,
                "remainder": len(pairs) % batch_size,
                **({"left_out": pairs.skipped} if pairs.skipped else {}),
            }
            for pairs in self.sets
        ]
        return {
            "fingerprint": self.fingerprint,
            "examples": sum(self.sizes),
            "batches": sum(self.sizes) // batch_size,
            "remainder": sum(self.sizes) % batch_size,
            "sets": sets,
            "tokenizer": {"pieces": self.tokenizer.vocab_size, "fingerprint": self.tokenizer.fingerprint},
        }

    def lengths(self, records: Records) -> NDArray[np.int64]:
        """Return (B,) the maximum length of each caption, because the real lengths are not known without reading."""
        return np.full(len(records), self.config.data.max_length, np.int64)

    def of_step(self, step: int) -> dict[str, np.ndarray]:
        """Return `mixup` float32 (2,) if the objective uses mixup: the share, and 1 to mix images or 0 to mix
        captions."""
        mixup = self.config.objective.mixup
        if mixup is None or self.split == "valid":
            return {}
        return {"mixup": mixup_of_step(mixup, step)}

    def build(self, records: Records) -> dict[str, np.ndarray]:
        """Return the batch of these pairs. Raises DataError if a row is bad and must not be replaced, or if too many
        rows are bad."""
        keys = records.key if self.split == "train" else records.held_out_keys(_VALID)
        num, size, data = len(records), self._pixels.size, self.config.data
        batch: dict[str, np.ndarray] = {
            "image": np.empty((num, 3, size, size), self._pixels.dtype),
            "bad": np.zeros(num, np.int8),
            "image_group": np.empty(num, np.int64),
        }
        rows = records.index.astype(np.int64)
        captions: list[str] = []
        columns = uniform(fold(keys, _CAPTION_COLUMN), 1)[:, 0].tolist()
        draws = zip(columns, fold(keys, _IMAGE).tolist(), fold(keys, _REPLACEMENT).tolist())
        for place, (source, row, drawn) in enumerate(zip(records.source.tolist(), rows.tolist(), draws)):
            rows[place], caption, reason = self._fill(batch["image"][place], source, row, *drawn)
            captions.append(caption)
            batch["bad"][place] = reason
        for source, own in records.by_component(range(len(self.sets))):
            pairs = self.sets[source]
            self._bad[source].see(len(own))
            # Image ids are unique only within a set, so they are hashed with a salt of the set.
            groups = fold(self._image_salts[source], pairs.image_ids[rows[own]])
            batch["image_group"][own] = groups.view(np.int64)
        hashes = (hashlib.blake2b(caption.encode(), digest_size=8).digest() for caption in captions)
        batch["caption_group"] = np.frombuffer(b"".join(hashes), "<i8").astype(np.int64)
        if self._augment is None:
            bare = self.tokenizer.encode_bare(captions)
        else:
            bare = self._augment(captions, [np.random.default_rng(key) for key in fold(keys, _CAPTION).tolist()])
        whole = [self.tokenizer.whole(ids, data.max_length) for ids in bare]
        return batch | self.tokenizer.pad(whole, data.max_length if data.pad_captions == "max_length" else None)

    def _fill(
        self, out: NDArray, source: int, row: int, column: float, transforms: int, replacement: int
    ) -> tuple[int, str, int]:
        """Write the image of a row, or of a row that replaces it, to `out` (3, H, W).

        Args:
            column: Draw in [0, 1) that selects one of several captions.
            transforms: Seed of the transforms.
            replacement: Key for the choice of rows that replace a bad row.

        Returns:
            The row that was used, its caption, and the index of the reason for which the first row was replaced.
        """
        pairs, first_reason = self.sets[source], 0
        for attempt in range(1 + _MAX_REPLACEMENTS):
            if attempt:
                row = int(fold(replacement, attempt)) % len(pairs)
            try:
                caption = pairs.caption(row, column)
                if not caption:
                    raise BadImage("empty caption", "there is no text")
                self._read(pairs, row, transforms, out)
            except BadImage as error:
                if self._why_strict:
                    raise DataError(
                        f"{pairs.explain(row, error)}\n  {self._why_strict}: fix or remove the row; pretrainkit data "
                        f"check {quote(pairs.path)} lists all bad rows"
                    ) from error
                self._bad[source].add(row, error)
                first_reason = first_reason or REASONS.index(error.reason)
                continue
            return row, caption, first_reason
        raise DataError(
            f"set {pairs.name}: {_MAX_REPLACEMENTS} rows drawn one after another are all bad\n"
            f"  list all of them with: pretrainkit data check {quote(pairs.path)}"
        )

    def _read(self, pairs: Pairs, row: int, transforms: int, out: NDArray) -> None:
        self._pixels(pairs.read_image(row), np.random.default_rng(transforms), out)

    def __reduce__(self) -> tuple[Callable[..., "ClipSource"], tuple[ClipRun, Split]]:
        """Pickle only the config, so that worker processes open the sets themselves."""
        return open_source, (self.config, self.split)


def open_source(config: ClipRun, split: Split) -> ClipSource:
    """Open the pairs of a split of a bound config. Raises DataError if there are no sets, or they are broken or empty;
    ConfigError if settings do not match."""
    sources = config.data.train if split == "train" else config.data.valid
    if not sources:
        raise DataError(f"data.{split} names no set of image-text pairs\n  give a set: data.{split}=FOLDER")
    tokenizer = CaptionTokenizer(tokenizer_folder(config))
    return ClipSource(config, split, [open_pairs(source, split) for source in sources], tokenizer)


def bind(config: ClipRun) -> ClipRun:
    """Fill in `model.text.vocab_size` from the tokenizer, and check the config against tokenizer and sets.

    Raises:
        ConfigError: Settings, tokenizer and sets do not match; with all problems.
        DataError: Sets are missing or broken, or held-out images are in the training data.
    """
    checks.check_cache(config)
    config = bind_model(config)
    data = config.data
    if not data.train:
        raise DataError("there is no training data: data.train names no set\n  give a set: data.train=FOLDER")
    tokenizer = CaptionTokenizer(tokenizer_folder(config))
    config = _with_vocabulary(config, tokenizer.vocab_size)
    problems = [*config.problems(), *checks.text_problems(config, tokenizer), *checks.image_problems(config)]
    problems += checks.name_problems(data)
    if data.text_augment is not None:
        try:
            CaptionAugment(data.text_augment, tokenizer)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    train = [open_pairs(source, "train") for source in data.train]
    valid = [open_pairs(source, "valid") for source in data.valid]
    for pairs in train:
        checks.check_torn(pairs, "train", data.on_bad_sample, data.max_bad_fraction)
    for pairs in valid:
        checks.check_torn(pairs, "valid", data.on_bad_sample)
    if problems := checks.size_problems(data, train):
        raise ConfigError(problems)
    checks.check_held_out(train, valid)
    checks.check_whole(valid, config.evaluate.num_examples)
    return config


def mixup_of_step(config: MixupConfig, step: int) -> NDArray[np.float32]:
    """Return (2,): the share of each pair itself, in [0, 1], and 1 if images are mixed or 0 if texts are mixed.

    For every step, a share is drawn from Beta(beta, beta), and then a number in [0, 1), which mixes images if it is
    above 0.5. Both come from the same NumPy `RandomState(config.seed)`.
    """
    if step < 0:
        raise ValueError(f"there is no step {step}; the first step is 0")
    num_steps = max(_FEWEST_STEPS, 1 << step.bit_length())  # doubles, so that draws are repeated for few lengths
    return _drawn(config.beta, config.seed, num_steps)[step].copy()


@lru_cache(maxsize=4)
def _drawn(beta: float, seed: int, num_steps: int) -> NDArray[np.float32]:
    """Return (num_steps, 2) for the first steps. The two distributions alternate on the same stream, so they are drawn
    one by one."""
    stream = np.random.RandomState(seed)
    rows = [(stream.beta(beta, beta), stream.uniform() > 0.5) for _ in range(num_steps)]
    draws = np.array(rows, np.float32)
    draws.flags.writeable = False
    return draws


_USUAL_VOCABULARY = 49_408
"""Size of the vocabulary of OpenAI's CLIP."""


def without_data(config: ClipRun) -> tuple[ClipRun, str]:
    """Return the config with architectures and a vocabulary, and a text with the assumptions of `assumed_batch`."""
    config = bind_model(config)
    assumed = f"captions of data.max_length={config.data.max_length} tokens"
    bound = _with_vocabulary(config, _USUAL_VOCABULARY)
    return bound, assumed if bound is config else f"{assumed}, a vocabulary of {_USUAL_VOCABULARY:,} pieces"


def _with_vocabulary(config: ClipRun, size: int) -> ClipRun:
    """Fill in the size of the vocabulary if the config does not set it."""
    text = config.model.text
    if text.kind != "transformer" or text.vocab_size is not None:
        return config
    return config.changed(model={"text": {"vocab_size": size}})


def assumed_batch(config: ClipRun, num_examples: int) -> dict[str, np.ndarray]:
    """Return a batch of pairs whose captions have the maximum length."""
    data = config.data
    pixels = PixelReader(data.train_transforms, data.normalize, is_fast=data.fast_decoding)
    return {
        "image": np.zeros((num_examples, 3, pixels.size, pixels.size), pixels.dtype),
        "bad": np.zeros(num_examples, np.int8),
        "image_group": np.arange(num_examples),
        "caption_group": np.arange(num_examples),
        "input_ids": np.ones((num_examples, data.max_length), np.int32),
        "num_tokens": np.full(num_examples, data.max_length, np.int32),
    }


_MODES: dict[str, Mode] = {"shuffle": "shuffle", "sequential": "set_by_set", "debias": "debias"}


def build_order(config: ClipRun, sizes: Sequence[int]) -> Order:
    """Return the order of sets of these sizes that `config.data` describes. Raises ConfigError or DataError if settings
    or sets do not match."""
    data = config.data
    return Order(
        sizes,
        seed=config.seed,
        mode=_MODES[data.order],
        weights=[source.weight for source in data.train],
        batch_size=data.batch_size,
        debias=Debias(exponent=data.debias_exponent, draw=data.debias_draw, seed=data.debias_seed),
        may_repeat=data.small_set == "wrap",
        is_static=data.compat_static_order,
    )
