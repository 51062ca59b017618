"""Acceptance facts 26 and 27 of Sabertooth on sentence order: how often segments are swapped, and undoing that."""

from pathlib import Path

import numpy as np
import pytest

from pretrainkit.data.source import Records
from pretrainkit.recipes.bert.config import BertDataConfig, BertModelConfig, BertRun
from pretrainkit.recipes.bert.source import BertSource, bind, open_source
from pretrainkit.rng import fold, stream_key
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.special import SpecialIds
from pretrainkit.training.optimizers.config import OptimizerConfig

SPECIAL = SpecialIds(unk=256, cls=257, sep=258, mask=259, pad=260)
SEQUENCE_LENGTH = 32
NUM_DRAWS = 1500


@pytest.fixture(scope="module")
def documents() -> list[list[np.ndarray]]:
    """Short enough for one example each; every fifth has one sentence only."""
    rng = np.random.default_rng(0)
    counts = [1 if number % 5 == 0 else int(rng.integers(2, 6)) for number in range(30)]
    return [[rng.integers(261, 900, rng.integers(1, 6)) for _ in range(count)] for count in counts]


@pytest.fixture(scope="module")
def source(documents: list[list[np.ndarray]], tmp_path_factory: pytest.TempPathFactory) -> BertSource:
    folder: Path = tmp_path_factory.mktemp("shards") / "tokens"
    write_shards(folder, [documents], vocab_size=900, special=SPECIAL)
    config = BertRun(
        num_steps=1,
        model=BertModelConfig(hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8),
        data=BertDataConfig(
            train=str(folder),
            batch_size=4,
            batching="rows",
            chunking="sabertooth",
            max_seq_length=SEQUENCE_LENGTH,
        ),
        optimizer=OptimizerConfig(peak_lr=1e-3),
    )
    return open_source(bind(config), "train")


@pytest.fixture(scope="module")
def batch(source: BertSource) -> dict[str, np.ndarray]:
    """Every document NUM_DRAWS times."""
    index = np.tile(np.arange(30), NUM_DRAWS)
    epoch = np.repeat(np.arange(NUM_DRAWS), 30)
    keys = fold(fold(stream_key(7, "facts"), epoch), index)
    return source.build(Records(np.zeros_like(index), epoch, index, keys))


def test_fact_26_half_of_the_pairs_are_swapped_and_single_segments_never(documents, source, batch):
    assert source.sizes == (30,)
    is_pair = np.tile([len(sentences) > 1 for sentences in documents], NUM_DRAWS)
    assert is_pair.sum() > 30_000  # so that 0.01 is more than three standard deviations
    assert abs(batch["next_sentence_label"][is_pair].mean() - 0.5) < 0.01
    assert not batch["next_sentence_label"][~is_pair].any()
    assert (batch["token_type_ids"].any(axis=1) == is_pair).all()


def test_fact_27_unmasking_and_undoing_the_swap_gives_the_document(documents, batch):
    for row in range(300):
        ids = batch["input_ids"][row].copy()
        is_used = batch["masked_lm_weights"][row] > 0
        ids[batch["masked_lm_positions"][row, is_used]] = batch["masked_lm_ids"][row, is_used]
        length = batch["lengths"][row]
        assert (ids[0], ids[length - 1]) == (SPECIAL.cls, SPECIAL.sep)
        first, *second = np.split(ids[1 : length - 1], np.flatnonzero(ids[1 : length - 1] == SPECIAL.sep))
        parts = [first, *(part[1:] for part in second)]
        if batch["next_sentence_label"][row]:
            parts.reverse()
        assert np.array_equal(np.concatenate(parts), np.concatenate(documents[row % 30])), row
