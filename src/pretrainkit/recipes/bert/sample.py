"""Held-out examples for the report: what the model saw, what it put in the gaps, and the truth.

Dimensions: B examples, K predictions.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from pretrainkit.data.source import BatchSource, Records
from pretrainkit.dist.weights import on_cpu
from pretrainkit.recipes.bert.config import BertRun
from pretrainkit.recipes.bert.inputs import read_batch
from pretrainkit.recipes.bert.readable import ORDERS, readable
from pretrainkit.tokenizers.load import load_tokenizer


def sample(config: BertRun, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, str]]:
    """`num` examples evenly spread over the first component of the held-out data; none without a copy of the tokenizer.

    Returns:
        Per example `masked`, `predicted` (the likeliest piece in each place) and `truth`, and with sentence order
        `order`: as the model says / as it is.
    """
    folder, size = Path(config.data.valid[0].path) / "tokenizer", source.sizes[0]
    if not folder.is_dir() or not size:
        return []
    tokenizer = load_tokenizer(folder)
    index = np.unique(np.linspace(0, size - 1, num, dtype=np.int64))
    zeros = np.zeros(len(index), np.int64)
    batch = source.build(Records(zeros, zeros, index, zeros.astype(np.uint64)))
    said_K, said_B = _answers(config, model, batch, len(tokenizer.pieces()))
    filled = {**batch, "input_ids": batch["input_ids"].copy()}
    is_used = batch["masked_lm_weights"] > 0
    if "cu_seqlens" in batch:
        filled["input_ids"][batch["masked_lm_positions"][is_used]] = said_K
    else:
        filled["input_ids"][is_used.nonzero()[0], batch["masked_lm_positions"][is_used]] = said_K
    found, pair = [], config.objective.sentence_pair
    for row in range(len(index)):
        shown = readable(batch, row, tokenizer, pair)
        texts = {
            "masked": shown["shown"],
            "predicted": readable(filled, row, tokenizer)["shown"],
            "truth": shown["truth"],
        }
        if said_B is not None:
            texts["order"] = f"{ORDERS[pair][int(said_B[row])]} / {shown['order']}" if shown["order"] else ""
        found.append(texts)
    return found


@torch.no_grad()
def _answers(
    config: BertRun, model: nn.Module, batch: dict[str, np.ndarray], num_pieces: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """The likeliest piece of each used prediction in order, and of each example whether it looks swapped. On the CPU.
    A model may have more rows than there are pieces."""
    model = on_cpu(model)
    was_training = model.training
    model.eval()
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    inputs, targets = read_batch(tensors, config.data.max_seq_length)
    outputs = model(inputs)
    model.train(was_training)
    said_K = outputs.logits_KV[:, :num_pieces].argmax(-1)[targets.weight_K > 0].numpy()
    order_B2 = outputs.sentence_order_B2
    return said_K, None if order_B2 is None else order_B2.argmax(-1).numpy()
