"""Unlabelled examples of the T5 recipe: inputs and targets from token shards, for any records in any order.

A component of the mixture is one folder of token shards with one denoiser, because segment lengths depend on the
denoiser. The order over components then keeps the rates.

Dimensions: B examples.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.source import BatchSource, Records
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.recipe import Split
from pretrainkit.recipes.t5 import features
from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.denoising import Denoiser, DenoiserConfig, DenoisingConfig, TextIds, describe, label
from pretrainkit.recipes.t5.ragged import Ragged, constant, merged
from pretrainkit.recipes.t5.segments import SegmentIndex, segments_of
from pretrainkit.recipes.t5.task_source import TaskBatches, bind_tasks, open_tasks, task_names, with_vocabulary
from pretrainkit.rng import fold, stream_key
from pretrainkit.tasks.rates import shares, spread
from pretrainkit.tasks.vocabulary_folder import NUM_SENTINELS
from pretrainkit.tokenizers.load import load_tokenizer
from pretrainkit.tokenizers.shards import TokenShards, refuse_different_tokenizers, refuse_shared_documents

_VALID = stream_key(0, "t5", "valid")
_SUMMARY_EXAMPLES = 256


@dataclass(frozen=True)
class Component:
    shards: TokenShards
    index: SegmentIndex
    denoiser: Denoiser
    weight: float | None
    """Share in the mixture; None for all components: in proportion to size."""


class DenoisingSource(BatchSource):
    """All segments of all components.

    "valid" ignores the records' keys and epochs: the corruption of an example is always the same, for any seed, so that
    losses are comparable between runs and steps.
    """

    def __init__(self, config: T5Run, split: Split, components: Sequence[Component]) -> None:
        self.config, self.split, self.components = config, split, tuple(components)
        self.weights: list[float | None] = [component.weight for component in components]
        folders = [component.shards.folder for component in components]
        self.names = component_names(folders, [component.denoiser.config for component in components])
        self.is_paired = components[0].denoiser.config.pairs
        """True if a record is two examples that share a row."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of segments of each component."""
        return tuple(len(component.index) for component in self.components)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the tokens and all settings that examples depend on; it is independent of the layout of rows."""
        denoising = self.config.data.denoising
        parts = [self.split, str(denoising.max_document_tokens)]
        if denoising.chunk_start != "aligned":
            parts.append(denoising.chunk_start)
        for component in self.components:
            denoiser = component.denoiser
            lengths = f"{denoiser.input_length} {denoiser.target_length}"
            own = denoiser.config.model_dump_json(exclude=None if denoiser.config.pairs else {"pairs"})
            parts += [component.shards.fingerprint, lengths, own, repr(denoiser.ids)]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Return statistics for logs and the report; mean lengths are from some examples of each component."""
        shown: list[dict[str, Any]] = []
        for number, component in enumerate(self.components):
            index = np.array(spread(len(component.index), _SUMMARY_EXAMPLES), np.int64)
            inputs, targets = self.examples(Records.of_first_epoch(index, number, fold(_VALID, index)))
            shown.append(
                {
                    "path": str(component.shards.folder),
                    "denoiser": describe(component.denoiser.config),
                    "weight": component.weight,
                    "examples": len(component.index),
                    "tokens": component.index.num_tokens,
                    "segment_length": component.denoiser.segment_length,
                    "mean_input_length": 0.0 if inputs is None else float(inputs.lengths.mean()),
                    "mean_target_length": float(targets.lengths.mean()),
                }
            )
        opened = {component.shards.folder: component.shards for component in self.components}.values()
        rates = [float(size) if weight is None else weight for size, weight in zip(self.sizes, self.weights)]
        lengths = [(row["mean_input_length"], row["mean_target_length"]) for row in shown]
        return {
            **super().summary(),
            "mixture": shares(self.names, rates, self.sizes, lengths),
            "documents": sum(shards.num_documents for shards in opened),
            "tokens": sum(shards.num_tokens for shards in opened),
            "components": shown,
        }

    def lengths(self, records: Records) -> NDArray[np.int64]:
        """Return (B,) numbers of tokens of inputs and targets together; an upper bound if the number of runs is
        random."""
        lengths = np.empty(len(records), np.int64)
        for component, own in records.by_component(self.components):
            lengths[own] = component.denoiser.most_tokens(component.index.lengths(records.index[own]))
        return lengths

    def examples(self, records: Records) -> tuple[Ragged | None, Ragged]:
        """Return inputs (None without inputs) and targets before their layout in rows; two per record if
        `is_paired`."""
        keys = records.key if self.split == "train" else records.held_out_keys(_VALID)
        inputs: list[tuple[NDArray[np.int64], Ragged]] = []
        targets: list[tuple[NDArray[np.int64], Ragged]] = []
        for component, own in records.by_component(self.components):
            text = component.index.read(component.shards, records.index[own])
            own_inputs, own_targets = component.denoiser.examples(text, keys[own])
            if self.is_paired:
                own = (2 * own[:, None] + np.arange(2)).ravel()
            inputs.append((own, constant((), len(own)) if own_inputs is None else own_inputs))
            targets.append((own, own_targets))
        num = (1 + self.is_paired) * len(records)
        has_inputs = any(component.denoiser.config.inputs is not None for component in self.components)
        return (merged(inputs, num) if has_inputs else None), merged(targets, num)

    def build(self, records: Records) -> dict[str, np.ndarray]:
        mask_id = next(iter(self.components[0].denoiser.ids.sentinels), -1)
        component = records.source if self.split == "train" and len(self.components) > 1 else None
        inputs, targets = self.examples(records)
        return features.lay_out(
            self.config, inputs, targets, mask_id=mask_id, component=component, is_paired=self.is_paired
        )


def component_names(folders: Sequence[object], denoisers: Sequence[DenoiserConfig]) -> list[str]:
    """Return a unique name for each component: the number of the folder if there are several, the denoiser's label, and
    a number if the label occurs again."""
    numbers = {folder: number for number, folder in enumerate(dict.fromkeys(folders))}
    names: list[str] = []
    for folder, denoiser in zip(folders, denoisers, strict=True):
        name = f"{numbers[folder]}-{label(denoiser)}" if len(numbers) > 1 else label(denoiser)
        again = sum(other == name or other.startswith(f"{name}#") for other in names)
        names.append(f"{name}#{again + 1}" if again else name)
    return names


def training_components(config: T5Run) -> list[str]:
    """Return the names of the training mixture's components, or nothing if there is only one. Reads no data."""
    if config.data.task is not None:
        names = task_names(config)
    else:
        pairs = [(source.path, denoiser) for source in config.data.train for denoiser in config.data.denoising.all]
        names = component_names(*zip(*pairs, strict=True)) if pairs else []
    return names if len(names) > 1 else []


def bind(config: T5Run) -> T5Run:
    """Fill in `model.vocab_size` from the token shards, and check the config against them.

    Raises ConfigError if settings, tokenizer and objective do not match; DataError if folders are missing, damaged or
    empty, have different tokenizers, or held-out documents are in the training data."""
    if config.data.task is not None:
        return bind_tasks(config)
    train, valid = (
        [TokenShards.open(source.path) for source in sources] for sources in (config.data.train, config.data.valid)
    )
    if not train:
        raise DataError(
            "there is no training data: data.train is empty\n  set data.train=FOLDER, a folder of token shards\n"
            "  create it with: pretrainkit tokenizer encode CORPUS --tokenizer DIR --out FOLDER"
        )
    refuse_different_tokenizers([*train, *valid])
    refuse_shared_documents(train, valid)
    ids = text_ids(train[0], config.data.denoising)
    size = max(train[0].vocab_size, 1 + max(ids.sentinels, default=0))
    owner = f"the tokenizer of {train[0].folder} has {train[0].vocab_size} pieces and with its sentinels"
    config, problems = with_vocabulary(config, size, owner, "the data")
    for denoiser in config.data.denoising.all:
        try:
            denoiser_of(config, denoiser, ids)
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError(problems)
    return config


def open_source(config: T5Run, split: Split) -> DenoisingSource | TaskBatches:
    """Return the examples of a split of a bound config, from its tasks or its token shards.

    Raises DataError if none are configured, files are missing or damaged, or there are no tokens."""
    if config.data.task is not None:
        return open_tasks(config, split)
    sources = config.data.train if split == "train" else config.data.valid
    if not sources:
        raise DataError(f"data.{split} is empty\n  pass token shards as data.{split}=FOLDER")
    denoising = config.data.denoising
    shards = [TokenShards.open(source.path) for source in sources]
    refuse_different_tokenizers(shards)
    ids = text_ids(shards[0], denoising)
    if config.model.vocab_size is not None and config.model.vocab_size < shards[0].vocab_size:
        raise DataError(
            f"{shards[0].folder} was created with a tokenizer of {shards[0].vocab_size} pieces, but the model has "
            f"{config.model.vocab_size}\n  encode the text with the tokenizer of the model"
        )
    total_rate = sum(denoiser.rate for denoiser in denoising.all)
    is_weighted = len(denoising.all) > 1 or any(source.weight is not None for source in sources)
    components = []
    for source, folder in zip(sources, shards, strict=True):
        if not folder.num_tokens:
            raise DataError(
                f"{folder.folder} has no tokens, so there are no examples for data.{split}\n"
                "  leave it out, or encode a corpus that has text"
            )
        for denoiser_config in denoising.all:
            denoiser = denoiser_of(config, denoiser_config, ids)
            settings = denoising.segment_settings(denoiser_config, ids.end)
            index = segments_of(folder, denoiser.segment_length, **settings)
            # A folder's share, configured or by its tokens, is divided among the denoisers by their rates.
            share = source.weight if source.weight is not None else float(folder.num_tokens)
            weight = share * denoiser_config.rate / total_rate if is_weighted else None
            components.append(Component(folder, index, denoiser, weight))
    return DenoisingSource(config, split, components)


def denoiser_of(config: T5Run, denoiser: DenoiserConfig, ids: TextIds) -> Denoiser:
    """Return the denoiser for the rows of a run. Raises ConfigError if lengths or sentinels do not suffice."""
    input_length, target_length = config.data.input_length, config.data.target_length
    if denoiser.pairs and config.model.kind == "decoder_only":
        # Its row holds prefix and remainder together, so one text fills it.
        denoiser = denoiser.model_copy(update={"pairs": False})
        input_length = target_length = input_length + target_length
    return Denoiser(denoiser, input_length, target_length, ids)


def text_ids(shards: TokenShards, denoising: DenoisingConfig) -> TextIds:
    """Return the tokenizer's ids of end mark, sentinels and modes.

    Raises DataError if the modes need the tokenizer, but the shards lack a copy of it."""
    tokenizer = load_tokenizer(shards.tokenizer_folder) if shards.tokenizer_folder.is_dir() else None
    if denoising.modes and tokenizer is None:
        raise DataError(
            f"{shards.folder} has no tokenizer, which data.denoising.modes needs\n"
            "  create the shards with pretrainkit tokenizer encode, or leave the modes out"
        )
    own: list[int] = []
    if denoising.num_sentinels is None and tokenizer is not None:
        place = {piece.lstrip("▁"): index for index, piece in enumerate(tokenizer.pieces())}
        while (piece := f"<extra_id_{len(own)}>") in place:
            own.append(place[piece])
    num_added = 0 if own else NUM_SENTINELS if denoising.num_sentinels is None else denoising.num_sentinels
    # After the pieces, with the last id first, as in T5.
    added = range(shards.vocab_size + num_added - 1, shards.vocab_size - 1, -1)
    modes = {}
    if tokenizer is not None:
        modes = {mode: tuple(tokenizer.encode(text).tolist()) for mode, text in denoising.modes.items()}
    text_size = min([shards.vocab_size, *own])
    return TextIds(end=shards.special.sep, sentinels=tuple(own or added), text_size=text_size, modes=modes)


_USUAL_VOCABULARY = 32_128


def without_data(config: T5Run) -> tuple[T5Run, str]:
    """Return the config with a vocabulary size, and a description of what `assumed_batch` assumes."""
    data = config.data
    assumed = f"inputs of data.input_length={data.input_length} and targets of data.target_length={data.target_length}"
    if config.model.vocab_size is None:
        assumed += f", a vocabulary of {_USUAL_VOCABULARY:,} ids"
        config = config.changed(model={"vocab_size": _USUAL_VOCABULARY})
    return config, assumed


def assumed_batch(config: T5Run, num_examples: int) -> dict[str, np.ndarray]:
    """Return examples whose inputs and targets have the maximum length."""
    data, denoisers = config.data, config.data.denoising.all
    is_paired, has_inputs = denoisers[0].pairs, denoisers[0].inputs is not None
    num = num_examples * (1 + is_paired)
    input_length, target_length = data.input_length, data.target_length
    if is_paired:  # two examples fill a row
        input_length, target_length = input_length // 2, target_length // 2
    if config.model.kind == "encoder_only":
        target_length = input_length
    inputs = constant((1,) * input_length, num) if has_inputs else None
    return features.lay_out(config, inputs, constant((1,) * target_length, num), mask_id=1, is_paired=is_paired)
