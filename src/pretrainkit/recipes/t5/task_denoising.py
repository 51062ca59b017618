"""Objectives on unlabelled text as steps of tasks: documents' tokens to segments, and segments to inputs and targets.

It does for the documents of a task what `segments.py` and `denoising.py` do for token shards. At the cache marker
documents are `targets` without an end mark. The token shards are those of the task's cache, or are created in a
temporary folder.
"""

import logging
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pretrainkit.errors import ConfigError
from pretrainkit.files.outputs import folder_beside
from pretrainkit.recipes.t5.denoising import Denoiser, DenoisingConfig, TextIds
from pretrainkit.recipes.t5.ragged import ragged
from pretrainkit.recipes.t5.segments import SegmentIndex, segments_of
from pretrainkit.tasks.cache import CachedExamples, special_ids
from pretrainkit.tasks.steps import Example, Examples, Lengths, Regroup, Step
from pretrainkit.tasks.vocabulary import Vocabulary
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.shards import TokenShards

if TYPE_CHECKING:
    from pretrainkit.tasks.task import Feature

PARTNER = "partner"
"""Key of the second example of a row in the first one, if the denoiser makes pairs."""
_MANY_DOCUMENTS = 100_000
_logger = logging.getLogger(__name__)


def denoising_steps(config: DenoisingConfig) -> tuple[Step, ...]:
    """Return the steps after the cache marker that make inputs and targets from documents, with end marks.

    Raises ConfigError if the objective has several denoisers."""
    if len(config.all) > 1:
        raise ConfigError(
            f"data.denoising.name={config.name} has {len(config.all)} denoisers, but a task of text supports only one\n"
            "  train on token shards instead: data.train=FOLDER, created by pretrainkit tokenizer encode"
        )
    return Segments(config), Denoise(config)


def whole_texts(config: DenoisingConfig) -> DenoisingConfig:
    """Return the objective without pairs, for a decoder-only model, whose row holds a prefix and its continuation."""
    denoisers = tuple(denoiser.model_copy(update={"pairs": False}) for denoiser in config.all)
    return config.model_copy(update={"denoisers": denoisers})


@dataclass(frozen=True)
class Segments(Regroup):
    """Documents that are concatenated and cut to the segment length that the denoiser plans for the model's lengths."""

    config: DenoisingConfig

    def regroup(
        self, examples: Sequence[Example], *, lengths: Lengths | None, features: "Mapping[str, Feature]"
    ) -> "SegmentsOfDocuments":
        denoiser = _denoiser(self.config, lengths, features)
        (denoiser_config,) = self.config.all
        vocabulary = features["targets"].vocabulary
        if isinstance(examples, CachedExamples):
            shards = examples.shards["targets"]
        else:
            shards = _temporary_shards(examples, vocabulary)
        settings = self.config.segment_settings(denoiser_config, vocabulary.eos_id)
        return SegmentsOfDocuments(shards, segments_of(shards, denoiser.segment_length, **settings))


def _temporary_shards(examples: Sequence[Example], vocabulary: Vocabulary) -> TokenShards:
    """Return the `targets` of all examples as token shards in a temporary folder, deleted when the shards are freed."""
    if len(examples) > _MANY_DOCUMENTS:
        message = "%d documents are tokenized before training begins; pretrainkit tasks cache would store them"
        _logger.warning(message, len(examples))
    with ExitStack() as stack:
        folder = stack.enter_context(folder_beside(Path(tempfile.gettempdir(), "pretrainkit-documents")))
        folder.chmod(0o700)  # other users may read the names in this place
        documents = ([example["targets"]] for example in examples if len(example["targets"]))
        write_shards(folder / "shards", [documents], vocab_size=vocabulary.size, special=special_ids(vocabulary))
        shards = TokenShards.open(folder / "shards")
        # Pickled copies do not delete the folder: workers read the folder of the process that created it.
        weakref.finalize(shards, stack.pop_all().close)
    return shards


class SegmentsOfDocuments(Examples):
    """Segments by index, as `{"targets": int32 ids}`."""

    def __init__(self, shards: TokenShards, index: SegmentIndex) -> None:
        self._shards, self._index = shards, index

    def __len__(self) -> int:
        return len(self._index)

    def example(self, index: int) -> Example:
        return {"targets": self._index.read(self._shards, np.array([index]))[0]}


@dataclass(frozen=True)
class Denoise:
    """Make inputs and targets from a segment, with new noise in every epoch."""

    config: DenoisingConfig

    def __call__(
        self,
        example: Mapping[str, Any],
        rng: np.random.Generator,
        lengths: Lengths | None,
        features: "Mapping[str, Feature]",
    ) -> Example:
        key = rng.integers(1 << 64, size=1, dtype=np.uint64)
        inputs, targets = self._denoisers.of(lengths, features).examples(ragged([example["targets"]]), key)
        examples: list[Example] = [{"targets": targets[number]} for number in range(len(targets))]
        if inputs is not None:
            examples = [{"inputs": inputs[number], **example} for number, example in enumerate(examples)]
        return {**examples[0], PARTNER: examples[1]} if self.is_paired else examples[0]

    @property
    def is_paired(self) -> bool:
        """True if an example has a partner that shares its row."""
        return self.config.all[0].pairs

    @cached_property
    def _denoisers(self) -> "_Denoisers":
        return _Denoisers(self.config)


class _Denoisers:
    """Cache of the denoiser for the last used lengths and features, which rarely change."""

    def __init__(self, config: DenoisingConfig) -> None:
        self._config = config
        self._last: tuple[tuple[int, ...], Vocabulary, Denoiser] | None = None

    def of(self, lengths: Lengths | None, features: "Mapping[str, Feature]") -> Denoiser:
        max_lengths, vocabulary = tuple((lengths or {}).values()), features["targets"].vocabulary
        last = self._last
        if last is None or last[0] != max_lengths or last[1] is not vocabulary:
            last = self._last = (max_lengths, vocabulary, _denoiser(self._config, lengths, features))
        return last[2]


def _denoiser(config: DenoisingConfig, lengths: Lengths | None, features: "Mapping[str, Feature]") -> Denoiser:
    (denoiser,) = config.all
    needed = {"targets"} if denoiser.inputs is None else {"inputs", "targets"}
    if lengths is None or not needed <= set(lengths):
        raise ConfigError(
            "an objective on text needs the maximum lengths of inputs and targets\n"
            "  pass them to pretrainkit tasks: --lengths inputs=512,targets=114"
        )
    vocabulary = features["targets"].vocabulary
    sentinels = vocabulary.sentinel_ids
    modes = {mode: tuple(vocabulary.encode(text)) for mode, text in config.modes.items()}
    ids = TextIds(vocabulary.eos_id, sentinels, min([vocabulary.size, *sentinels]), modes)
    return Denoiser(denoiser, lengths.get("inputs", 0), lengths["targets"], ids)
