"""The pairs of the CLIP recipe: sets of images and captions in, batches out, any records in any order.

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
"""Streams of one example's key."""
_MAX_REPLACEMENTS = 100
_FEWEST_STEPS = 1024


class ClipSource(BatchSource):
    """All pairs of all sets.

    A batch has `image` uint8 (B, 3, H, W), RGB, or float32 normalized where boxes are erased; `input_ids` int32 (B, T),
    `num_tokens` int32 (B,); `image_group` and `caption_group` int64 (B,), equal where rows show the same image or have
    the same caption; `bad` int8 (B,), why a row was replaced (pairs.REASONS).

    Crops, augmented captions and replacements are functions of the records' keys; "valid" ignores those, so that
    evaluations of runs and of steps compare.
    """

    def __init__(self, config: ClipRun, split: Split, sets: Sequence[Pairs], tokenizer: CaptionTokenizer) -> None:
        """`config` is bound; `sets` are in its order."""
        data = config.data
        self.config, self.split, self.sets, self.tokenizer = config, split, tuple(sets), tokenizer
        self._ops = data.train_transforms if split == "train" else data.valid_transforms
        self._is_fast = data.fast_decoding and split == "train"
        self._pixels = PixelReader(self._ops, data.normalize, is_exact=split == "valid", is_fast=self._is_fast)
        augment = data.text_augment if split == "train" else None
        self._augment = None if augment is None else CaptionAugment(augment, tokenizer)
        self._why_strict = "data.on_bad_sample is error" if data.on_bad_sample == "error" else ""
        """Why a bad row is an error; empty where another takes its place."""
        if split == "valid":
            self._why_strict = "evaluation must see every row"
        self._bad = [BadRows(pairs, data.max_bad_fraction) for pairs in sets]
        self._image_salts = np.array([stream_key(0, "image", pairs.path) for pairs in sets], np.uint64)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.sets))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of names and captions and of every setting that a batch depends on; not of the images' contents."""
        data = self.config.data
        parts = [pairs.fingerprint for pairs in self.sets]
        parts += [self.split, self.tokenizer.fingerprint, str(data.max_length), data.on_bad_sample]
        parts += [op.model_dump_json() for op in self._ops]
        parts += ["fast decoding"] if self._is_fast else []
        if self._augment is not None:
            parts.append(self._augment.config.model_dump_json())
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Figures for logs and the report. A remainder is what is left of a set's pairs after whole batches."""
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
        """(B,) the longest each caption can be: what is not looked at costs nothing."""
        return np.full(len(records), self.config.data.max_length, np.int64)

    def of_step(self, step: int) -> dict[str, np.ndarray]:
        """`mixup` float32 (2,) where the objective mixes: the share, and 1 for images or 0 for captions."""
        mixup = self.config.objective.mixup
        if mixup is None or self.split == "valid":
            return {}
        return {"mixup": mixup_of_step(mixup, step)}

    def build(self, records: Records) -> dict[str, np.ndarray]:
        """Return the batch of these pairs. Raises DataError where a row is bad, in evaluation or where replacing is
        off; or where too many rows are."""
        keys = records.key if self.split == "train" else fold(fold(_VALID, records.source), records.index)
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
        for source in np.unique(records.source).tolist():
            own, pairs = np.flatnonzero(records.source == source), self.sets[source]
            self._bad[source].see(len(own))
            # Numbers of images are those of their set: salted, they differ from those of other sets.
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
        """Write the image of a row, or of one that replaces it, into `out` (3, H, W). `column` in [0, 1) says which of
        several captions, `transforms` seeds the transforms, `replacement` is the key of the rows that may take its
        place. Returns the row that was used, its caption, and why the first choice was not."""
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
                        f"check {pairs.path} lists all bad rows"
                    ) from error
                self._bad[source].add(row, error)
                first_reason = first_reason or REASONS.index(error.reason)
                continue
            return row, caption, first_reason
        raise DataError(
            f"set {pairs.name}: {_MAX_REPLACEMENTS} rows drawn one after another are all bad\n"
            f"  all are listed by: pretrainkit data check {quote(pairs.path)}"
        )

    def _read(self, pairs: Pairs, row: int, transforms: int, out: NDArray) -> None:
        self._pixels(pairs.read_image(row), np.random.default_rng(transforms), out)

    def __reduce__(self) -> tuple[Callable[..., "ClipSource"], tuple[ClipRun, Split]]:
        """Worker processes open the sets themselves."""
        return open_source, (self.config, self.split)


def open_source(config: ClipRun, split: Split) -> ClipSource:
    """Open the pairs of a split of a bound config. Raises DataError where no sets were given, or they are broken or
    empty; ConfigError where settings do not fit each other."""
    sources = config.data.train if split == "train" else config.data.valid
    if not sources:
        raise DataError(f"data.{split} names no set of image-text pairs\n  give it as data.{split}=FOLDER")
    tokenizer = CaptionTokenizer(tokenizer_folder(config))
    return ClipSource(config, split, [open_pairs(source, split) for source in sources], tokenizer)


def bind(config: ClipRun) -> ClipRun:
    """Fill in `model.text.vocab_size` from the tokenizer, and check the config against tokenizer and sets. Raises
    ConfigError with all problems where settings, tokenizer and sets do not fit each other; DataError where sets are
    missing or broken, or held-out images are in the training data."""
    checks.check_cache(config)
    config = bind_model(config)
    data = config.data
    if not data.train:
        raise DataError("there is nothing to train on: data.train names no set\n  give it as data.train=FOLDER")
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
    """(2,): the share that each pair keeps of itself, in [0, 1], and 1 where images are mixed, 0 where texts are.

    For every step a share is drawn from Beta(beta, beta), then a number in [0, 1), which mixes images if above 0.5,
    both from one NumPy `RandomState(config.seed)`.
    """
    if step < 0:
        raise ValueError(f"there is no step {step}; the first is 0")
    num_steps = max(_FEWEST_STEPS, 1 << step.bit_length())  # grows by doubling, so that few lengths are ever drawn
    return _drawn(config.beta, config.seed, num_steps)[step].copy()


@lru_cache(maxsize=4)
def _drawn(beta: float, seed: int, num_steps: int) -> NDArray[np.float32]:
    """(num_steps, 2) for the first steps. The two distributions take turns on one stream, so they are drawn one by
    one."""
    stream = np.random.RandomState(seed)
    rows = [(stream.beta(beta, beta), stream.uniform() > 0.5) for _ in range(num_steps)]
    found = np.array(rows, np.float32)
    found.flags.writeable = False
    return found


_USUAL_VOCABULARY = 49_408
"""Size of the vocabulary of OpenAI's CLIP."""


def without_data(config: ClipRun) -> tuple[ClipRun, str]:
    """The config with its architectures and a vocabulary, and what `assumed_batch` assumes."""
    config = bind_model(config)
    told = f"captions of data.max_length={config.data.max_length} tokens"
    bound = _with_vocabulary(config, _USUAL_VOCABULARY)
    return bound, told if bound is config else f"{told}, a vocabulary of {_USUAL_VOCABULARY:,} pieces"


def _with_vocabulary(config: ClipRun, size: int) -> ClipRun:
    """Fill in the number of embeddings of pieces, where the config does not have it."""
    text = config.model.text
    if text.kind != "transformer" or text.vocab_size is not None:
        return config
    return config.changed(model={"text": {"vocab_size": size}})


def assumed_batch(config: ClipRun, num_examples: int) -> dict[str, np.ndarray]:
    """Pairs whose captions are as long as they may be."""
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
    """Return the order over sets of these sizes that `config.data` describes. Raises ConfigError or DataError where
    settings, or sets, do not fit together."""
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
