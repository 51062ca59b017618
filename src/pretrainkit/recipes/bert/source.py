"""Data source of the BERT recipe: builds masked batches from token shards, for any records in any order.

Dimensions: B examples, D documents.
"""

import hashlib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.source import BatchSource, Records
from pretrainkit.errors import ConfigError, DataError
from pretrainkit.recipes.bert import batch as layouts
from pretrainkit.recipes.bert.batch import Examples
from pretrainkit.recipes.bert.chunks import ChunkIndex, chunks_of
from pretrainkit.recipes.bert.config import BertRun
from pretrainkit.recipes.bert.masking import Masking, num_predictions
from pretrainkit.recipes.bert.segments import Segments, draw_segments, example_lengths
from pretrainkit.rng import Keys, stream_key
from pretrainkit.tokenizers.load import load_tokenizer
from pretrainkit.tokenizers.shards import TokenShards, refuse_different_tokenizers, refuse_shared_documents
from pretrainkit.tokenizers.special import SpecialIds
from pretrainkit.training.data_config import SourceConfig

Split = Literal["train", "valid"]

_log = logging.getLogger(__name__)
_VALID = stream_key(0, "bert", "valid")
MIN_PAIRS = 0.1
"""Share of the examples with several sentences below which sentence order is reported as not learned."""


@dataclass(frozen=True)
class Component:
    """Token shards and the chunks in them."""

    shards: TokenShards
    chunks: ChunkIndex


class BertSource(BatchSource):
    """Examples from all chunks of all components.

    The split "valid" ignores the keys and epochs of records: an example is always split, trimmed, swapped and masked in
    the same way for any seed, so that the losses of runs and of steps are comparable. It also always masks
    `objective.valid_masking_rate` (15 %) of the tokens, for any rate in training: predicting more tokens from fewer is
    harder, so losses at different rates are not comparable. (`max_predictions` and the unit are those of training.)
    """

    def __init__(self, config: BertRun, split: Split, components: Sequence[Component], masking: Masking) -> None:
        """Create the source. `config` is bound; `components` are in its order."""
        self.config, self.split, self.components, self.masking = config, split, tuple(components), masking
        self.special = components[0].shards.special
        self._max_tokens = config.data.max_seq_length - 2

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(component.chunks) for component in self.components)

    @property
    def document_sizes(self) -> tuple[NDArray[np.int64], ...]:
        return tuple(component.chunks.document_sizes for component in self.components)

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the tokens and of every setting that examples depend on. It excludes the layout, which does
        not change them."""
        data, objective = self.config.data, self.config.objective
        parts = [component.shards.fingerprint for component in self.components]
        parts += [self.split, str(data.max_seq_length), data.chunking, str(self.config.num_predictions)]
        unit, span_length = objective.mask_unit, objective.mean_span_length
        parts += [
            f"{self.masking.rate} {unit} {span_length if unit == 'span' else ''}",
            f"{objective.mask_share} {objective.random_share} {self._replacements if objective.random_share else ''}",
            f"{objective.sentence_order} {objective.swap_probability if objective.sentence_order else ''}"
            + ("" if objective.sentence_pair == "order" else f" {objective.sentence_pair}"),
        ]
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    @property
    def _replacements(self) -> str:
        """Fingerprint of the replacement ids. They also depend on the copy of the tokenizer, which may be absent."""
        ids = np.ascontiguousarray(self.masking.replacement_ids, "<i8")
        return hashlib.blake2b(ids.tobytes(), digest_size=16).hexdigest()

    @property
    def num_tokens(self) -> int:
        """Number of text tokens of all components."""
        return sum(int(component.chunks.lengths.sum(dtype=np.int64)) for component in self.components)

    @property
    def lost_share(self) -> float:
        """Share of the text tokens that an epoch drops because chunks are longer than examples. It is 0 unless
        data.chunking is "sabertooth". Each epoch drops other tokens."""
        lost = sum(
            component.chunks.num_tokens_lost(self._max_tokens, self.config.objective.sentence_order)
            for component in self.components
        )
        return lost / max(1, self.num_tokens)

    def summary(self) -> dict[str, Any]:
        """Return statistics for logs and the report, from stored lengths alone. They show what is dropped or capped."""
        lengths = np.concatenate([self._lengths(c, np.arange(len(c.chunks))) for c in self.components])
        num_inner = np.concatenate([component.chunks.num_inner for component in self.components])
        num_text = lengths - 2 - ((num_inner > 0) & self.config.objective.sentence_order)
        return {
            "fingerprint": self.fingerprint,
            "examples": len(lengths),
            "documents": sum(len(documents) for documents in self.document_sizes),
            "tokens": self.num_tokens,
            "lost_token_share": self.lost_share,
            "mean_length": float(lengths.mean()),
            "predicted_token_share": float(num_predictions(self.masking, lengths, num_text).sum() / lengths.sum()),
            "several_sentences_share": float((num_inner > 0).mean()),
        }

    def report_single_sentences(self) -> None:
        """Report examples that hold one sentence each, from which nothing can be learned about the order of two. Thai,
        for instance, has no stops."""
        share = float((np.concatenate([component.chunks.num_inner for component in self.components]) > 0).mean())
        if self.config.objective.sentence_order and share < MIN_PAIRS:
            _log.warning(
                "%.0f %% of the training examples have only one sentence, so the order of sentences is not learned\n"
                "  set objective.sentence_order=false, or find more sentences, such as lines: pretrainkit tokenizer "
                "encode CORPUS --tokenizer DIR --splitter newline --out FOLDER",
                100 * (1 - share),
            )

    def report_long_words(self) -> None:
        """Report words that are too long to be hidden whole: text without spaces, or a tokenizer whose pieces do not
        mark the beginnings of words."""
        is_start = self.masking.is_word_start
        if is_start is None:
            return
        records = Records.of_first_epoch(range(min(256, len(self.components[0].chunks))))
        _, text = self._segments(records, records.key)
        mean_length = len(text) / max(len(records), int(is_start[text].sum()))
        if mean_length > self.config.num_predictions:
            _log.warning(
                "objective.mask_unit=whole_word: a word has %.0f tokens on average, more than the %d that are "
                "predicted in an example, so mostly the first tokens of an example are predicted\n"
                "  set objective.mask_unit=token, or span",
                mean_length,
                self.config.num_predictions,
            )

    def lengths(self, records: Records) -> NDArray[np.int64]:
        lengths_B = np.empty(len(records), np.int64)
        for component, own in records.by_component(self.components):
            lengths_B[own] = self._lengths(component, records.index[own])
        return lengths_B

    def _lengths(self, component: Component, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        has_order = self.config.objective.sentence_order
        return example_lengths(component.chunks, rows, max_tokens=self._max_tokens, sentence_order=has_order)

    def build(self, records: Records) -> dict[str, np.ndarray]:
        """Build a `rows` or `packed` batch; see `batch.py`."""
        examples, capacity = self.examples(records), self.config.data.microbatch_tokens
        return _laid_out(self.config, examples, self.special, self.masking.rate, capacity)

    def examples(self, records: Records) -> Examples:
        """Return the masked examples, before they are arranged in rows or packed."""
        keys = records.key if self.split == "train" else records.held_out_keys(_VALID)
        segments, text = self._segments(records, keys)
        return layouts.assemble(segments, text, keys, self.masking, self.special)

    def _segments(self, records: Records, keys: Keys) -> tuple[Segments, NDArray[np.integer]]:
        """Return the segments of all examples, and their tokens, example by example."""
        drawn = []
        for component, own in records.by_component(self.components):
            segments = draw_segments(
                component.chunks,
                records.index[own],
                keys[own],
                max_tokens=self._max_tokens,
                sentence_order=self.config.objective.sentence_order,
                swap_probability=self.config.objective.swap_probability,
                pair=self.config.objective.sentence_pair,
            )
            text = component.shards.gather_flat(segments.starts_B2.ravel(), segments.lengths_B2.ravel())
            drawn.append((own, segments, text))
        if len(drawn) == 1:
            return drawn[0][1], drawn[0][2]
        merged = Segments(
            np.empty((len(records), 2), np.int64), np.empty((len(records), 2), np.int64), np.empty(len(records), bool)
        )
        for own, segments, _ in drawn:
            merged.starts_B2[own], merged.lengths_B2[own] = segments.starts_B2, segments.lengths_B2
            merged.is_swapped[own] = segments.is_swapped
        source_of_token = np.repeat(records.source, merged.num_text)
        tokens = np.empty(len(source_of_token), np.int32)
        for own, _, text in drawn:
            if len(text):
                tokens[source_of_token == records.source[own][0]] = text
        return merged, tokens


def open_source(config: BertRun, split: Split) -> BertSource:
    """Return the examples of a split of a bound config. Raises DataError if no shards are given, or they are broken or
    have no tokens."""
    components, objective = _components(config, split), config.objective
    shards = components[0].shards
    rate = objective.masking_rate if split == "train" else objective.valid_masking_rate
    is_word_start = _is_word_start(shards) if objective.mask_unit == "whole_word" else None
    replacement_ids = _replacement_ids(config, shards)
    masking = Masking(objective, rate, config.num_predictions, shards.special.mask, replacement_ids, is_word_start)
    return BertSource(config, split, components, masking)


def bind(config: BertRun) -> BertRun:
    """Fill in `model.vocab_size` from the token shards, and check the config against them.

    Raises ConfigError if the settings do not fit the tokenizer. Raises DataError if folders are missing, broken or
    empty, were made with different tokenizers, or held-out documents are in the training data.
    """
    train, valid = (
        [TokenShards.open(source.path) for source in sources] for sources in (config.data.train, config.data.valid)
    )
    if not train:
        raise DataError(
            "there is nothing to train on: data.train names no token shards\n  set data.train=FOLDER\n"
            "  create the folder with: pretrainkit tokenizer encode CORPUS --tokenizer DIR --out FOLDER"
        )
    _check_tokenizers([*train, *valid])
    refuse_shared_documents(train, valid)
    tokenizer = train[0]
    if config.model.vocab_size is None:
        config = config.changed(model={"vocab_size": tokenizer.vocab_size})
    problems = config.problems()
    assert config.model.vocab_size is not None
    if config.model.vocab_size < tokenizer.vocab_size:
        problems.append(
            f"model.vocab_size is {config.model.vocab_size}, but the tokenizer of {tokenizer.folder} has "
            f"{tokenizer.vocab_size} pieces\n  set model.vocab_size={tokenizer.vocab_size} or more, or null to take it "
            "from the data"
        )
    if problems:
        raise ConfigError(problems)
    return config


def _components(config: BertRun, split: Split) -> list[Component]:
    sources = config.data.train if split == "train" else config.data.valid
    if not sources:
        raise DataError(f"data.{split} names no token shards\n  set data.{split}=FOLDER")
    components = []
    for source in sources:
        shards = TokenShards.open(source.path)
        index = chunks_of(
            shards,
            chunking=config.data.chunking,
            max_tokens=config.data.max_seq_length - 2,
            sentence_order=config.objective.sentence_order,
        )
        if not len(index):
            raise DataError(
                f"{shards.folder} has no tokens, so there are no examples for data.{split}\n"
                "  leave it out, or encode a corpus that has text"
            )
        if config.model.vocab_size is not None and config.model.vocab_size < shards.vocab_size:
            raise DataError(
                f"{shards.folder} was made with a tokenizer of {shards.vocab_size} pieces, but the model has "
                f"{config.model.vocab_size}\n  encode the text with the tokenizer of the model"
            )
        components.append(Component(shards, index))
    _check_tokenizers([component.shards for component in components])
    return components


def _replacement_ids(config: BertRun, shards: TokenShards) -> NDArray[np.integer]:
    """Return the ids of random replacements: all ids (compatible mode), or all except control tokens and bytes."""
    ids = np.arange(shards.vocab_size)
    if config.objective.random_replacement == "whole_vocabulary_compat":
        return ids
    if shards.tokenizer_folder.is_dir():
        return load_tokenizer(shards.tokenizer_folder).learned_ids()
    return np.setdiff1d(ids, [*shards.special.as_dict().values()])


def _is_word_start(shards: TokenShards) -> NDArray[np.bool_]:
    """Return (V,) bool, True for ids that begin a word, from the tokenizer that made the shards."""
    if not shards.tokenizer_folder.is_dir():
        raise DataError(
            f"{shards.folder} has no copy of its tokenizer, which objective.mask_unit=whole_word needs to find the "
            "beginnings of words\n  make the shards with pretrainkit tokenizer encode, or set objective.mask_unit=token"
        )
    return load_tokenizer(shards.tokenizer_folder).is_word_start()


def _check_tokenizers(shards: Sequence[TokenShards]) -> None:
    refuse_different_tokenizers(shards)
    first = shards[0]
    ids = first.special.as_dict()
    broken = [f"{name}={value}" for name, value in ids.items() if not 0 <= value < first.vocab_size]
    if broken or len({ids[name] for name in ("cls", "sep", "mask", "pad")}) < 4:
        raise DataError(
            f"the tokenizer of {first.folder} has no usable control tokens: {ids} with {first.vocab_size} pieces\n"
            "  BERT needs four different ids for cls, sep, mask and pad; train one with pretrainkit tokenizer train"
        )


_USUAL_VOCABULARY = 32_128
"""Assumed number of rows of the embedding table if there is no tokenizer."""


def without_data(config: BertRun) -> tuple[BertRun, str]:
    """Return the config with a vocabulary, and a description of what `assumed_batch` assumes."""
    assumptions = f"examples of data.max_seq_length={config.data.max_seq_length} tokens"
    if config.model.vocab_size is None:
        config = config.changed(model={"vocab_size": _USUAL_VOCABULARY})
        assumptions += f", a vocabulary of {_USUAL_VOCABULARY:,} pieces"
    return config, assumptions


def assumed_batch(config: BertRun, num_examples: int) -> dict[str, np.ndarray]:
    """Return a batch of examples of maximum length. They are pairs if sentence order is trained."""
    data, objective = config.data, config.objective
    assert config.model.vocab_size is not None
    num_text = data.max_seq_length - 2 - objective.sentence_order
    second = num_text // 2 if objective.sentence_order else 0
    lengths_B2 = np.tile(np.array([num_text - second, second], np.int64), (num_examples, 1))
    segments = Segments(np.zeros_like(lengths_B2), lengths_B2, np.zeros(num_examples, bool))
    special = SpecialIds(unk=0, cls=1, sep=2, mask=3, pad=0)
    vocab_size = config.model.vocab_size
    replacement_ids, is_word_start = np.arange(min(4, vocab_size)), np.ones(vocab_size, bool)
    masking = Masking(
        objective, objective.masking_rate, config.num_predictions, special.mask, replacement_ids, is_word_start
    )
    text, keys = np.zeros(num_examples * num_text, np.int32), np.arange(num_examples, dtype=np.uint64)
    examples = layouts.assemble(segments, text, keys, masking, special)
    return _laid_out(config, examples, special, masking.rate, None)


def _laid_out(
    config: BertRun, examples: Examples, special: SpecialIds, masking_rate: float, capacity: int | None
) -> dict[str, np.ndarray]:
    """Arrange examples as a `rows` or `packed` batch, as the config says."""
    has_order = config.objective.sentence_order
    if config.data.batching == "rows":
        width, num_slots = config.data.max_seq_length, config.num_predictions
        return layouts.rows(examples, special, width=width, num_slots=num_slots, sentence_order=has_order)
    return layouts.packed(examples, special, sentence_order=has_order, capacity=capacity, masking_rate=masking_rate)


def unigram_loss(config: BertRun) -> float:
    """Return the cross-entropy of held-out tokens under the add-one-smoothed token frequencies of the training data, in
    nats per token. Counts the first 10 M training tokens and scores the first 1 M held-out tokens.
    """
    vocab_size = int(config.model.vocab_size or 0)
    counts = _count(config.data.train, 10_000_000, vocab_size) + 1
    held_out = _count(config.data.valid, 1_000_000, vocab_size)
    nll_V = math.log(counts.sum()) - np.log(counts)
    return float((held_out * nll_V).sum() / held_out.sum())


def _count(sources: Sequence[SourceConfig], num_tokens: int, vocab_size: int) -> NDArray[np.int64]:
    """Count the occurrences of each id among the first `num_tokens` tokens."""
    counts = np.zeros(vocab_size, np.int64)
    opened = map(TokenShards.open, (source.path for source in sources))
    for tokens in (shards.tokens(shard) for shards in opened for shard in range(shards.num_shards)):
        tokens = tokens[:num_tokens]
        counts += np.bincount(tokens, minlength=vocab_size)
        num_tokens -= len(tokens)
        if num_tokens <= 0:
            break
    return counts
