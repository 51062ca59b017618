"""Random batches of the recipe in both layouts, without its data side. Dimensions as in `inputs.py`."""

import numpy as np
import torch
from torch import Tensor

from pretrainkit.recipes.bert.config import (
    BertDataConfig,
    BertModelConfig,
    BertObjectiveConfig,
    BertRun,
    ModernModelConfig,
)
from pretrainkit.training.optimizers.config import OptimizerConfig

WIDTH = 24
SLOTS = 4


def run_config(**objective: object) -> BertRun:
    """A tiny BERT without dropout, vocabulary 300."""
    return BertRun(
        num_steps=1,
        model=BertModelConfig(
            vocab_size=300,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            intermediate_size=48,
            max_positions=32,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        ),
        objective=BertObjectiveConfig(**objective),
        data=BertDataConfig(batch_size=4, max_seq_length=WIDTH),
        optimizer=OptimizerConfig(peak_lr=1e-3),
    )


def modern_config(**model: object) -> BertRun:
    """A tiny ModernBERT: global layers 0 and 2, windows of 8 in layers 1 and 3."""
    settings = {"vocab_size": 300, "hidden_size": 32, "num_layers": 4, "num_heads": 4, "intermediate_size": 40}
    settings |= {"max_positions": 64, "local_window": 8, "global_every": 2}
    return run_config(sentence_order=False).model_copy(update={"model": ModernModelConfig(**{**settings, **model})})


def row_batch(
    lengths: list[int], seed: int = 0, *, width: int = WIDTH, slots: int = SLOTS, vocab_size: int = 300
) -> dict[str, Tensor]:
    """A `rows` batch of pairs with these lengths (at least 3); examples get 1 to `slots` predictions."""
    rng = np.random.default_rng(seed)
    num = len(lengths)
    batch = {
        "input_ids": np.full((num, width), 260, np.int32),
        "input_mask": np.arange(width) < np.array(lengths)[:, None],
        "token_type_ids": np.zeros((num, width), np.int32),
        "masked_lm_positions": np.zeros((num, slots), np.int32),
        "masked_lm_ids": np.zeros((num, slots), np.int32),
        "masked_lm_weights": np.zeros((num, slots), np.float32),
        "next_sentence_label": rng.integers(0, 2, num),
        "lengths": np.array(lengths, np.int32),
    }
    for row, length in enumerate(lengths):
        batch["input_ids"][row, :length] = rng.integers(0, vocab_size, length)
        batch["token_type_ids"][row, length // 2 : length] = 1
        used = min(int(rng.integers(1, slots + 1)), length - 2)
        batch["masked_lm_positions"][row, :used] = np.sort(rng.permutation(length - 2)[:used] + 1)
        batch["masked_lm_ids"][row, :used] = rng.integers(0, vocab_size, used)
        batch["masked_lm_weights"][row, :used] = 1
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def packed_batch(rows: dict[str, Tensor], *, room: int = 0) -> dict[str, Tensor]:
    """The same examples without padding, with `room` unused tokens and predictions at the end."""
    lengths = rows["lengths"].long()
    width = rows["input_ids"].shape[1]
    is_real = torch.arange(width) < lengths[:, None]
    starts = lengths.cumsum(0) - lengths
    is_used = rows["masked_lm_weights"] > 0
    packed = {
        "input_ids": rows["input_ids"][is_real],
        "token_type_ids": rows["token_type_ids"][is_real],
        "positions": torch.arange(width, dtype=torch.int32).expand_as(is_real)[is_real],
        "masked_lm_positions": (starts[:, None] + rows["masked_lm_positions"])[is_used].int(),
        "masked_lm_ids": rows["masked_lm_ids"][is_used],
        "masked_lm_weights": rows["masked_lm_weights"][is_used],
    }
    packed = {name: torch.cat([tensor, tensor.new_zeros(room)]) for name, tensor in packed.items()}
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
    return packed | {
        "cu_seqlens": ends,
        "lengths": rows["lengths"],
        "next_sentence_label": rows["next_sentence_label"],
    }
