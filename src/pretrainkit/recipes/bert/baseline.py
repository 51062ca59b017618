"""What a model scores that has learned nothing but how frequent each token is: the plateau a real one must leave."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.bert.config import BertRun
from pretrainkit.tokenizers.shards import TokenShards
from pretrainkit.training.data_config import SourceConfig

MAX_TRAIN_TOKENS = 10_000_000
MAX_VALID_TOKENS = 1_000_000


def unigram_loss(config: BertRun) -> float:
    """Cross-entropy on held-out tokens of the add-one-smoothed token frequencies of the training data, in nats/token.

    Counts the first 10 M training tokens and scores the first 1 M held-out ones.
    """
    vocab_size = int(config.model.vocab_size or 0)
    counts = _count(config.data.train, MAX_TRAIN_TOKENS, vocab_size) + 1
    held_out = _count(config.data.valid, MAX_VALID_TOKENS, vocab_size)
    nll_V = math.log(counts.sum()) - np.log(counts)
    return float((held_out * nll_V).sum() / held_out.sum())


def uniform_loss(config: BertRun) -> float:
    """ln of the vocabulary size: every token equally likely."""
    return math.log(int(config.model.vocab_size or 0))


def _count(sources: Sequence[SourceConfig], num_tokens: int, vocab_size: int) -> NDArray[np.int64]:
    """How often each id occurs among the first `num_tokens` tokens."""
    counts = np.zeros(vocab_size, np.int64)
    for tokens in _shards(sources):
        tokens = tokens[:num_tokens]
        counts += np.bincount(tokens, minlength=vocab_size)
        num_tokens -= len(tokens)
        if num_tokens <= 0:
            break
    return counts


def _shards(sources: Sequence[SourceConfig]) -> Iterator[NDArray[np.integer]]:
    for source in sources:
        shards = TokenShards.open(source.path)
        for shard in range(shards.num_shards):
            yield shards.tokens(shard)
