"""Examples as text, for eyes: what the model is shown, what it puts in the gaps, and the truth.

Dimensions: B examples, K predictions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pretrainkit.data.source import BatchSource, Records
from pretrainkit.dist.weights import on_cpu
from pretrainkit.eval.evaluator import evaluation_mode
from pretrainkit.recipes.bert.config import BertRun
from pretrainkit.recipes.bert.inputs import read_batch
from pretrainkit.tasks.rates import spread
from pretrainkit.tokenizers.load import Tokenizer, load_tokenizer

HIDDEN = "<mask>"
ORDERS = {"order": ("as written", "swapped"), "next": ("as written", "from elsewhere")}
"""By kind of pair: what the labels 0 and 1 of an example are called."""


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
    index = np.array(spread(size, num), np.int64)
    zeros = np.zeros(len(index), np.int64)  # the first component and epoch; held-out examples need no key
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
        shown, predicted = readable(batch, row, tokenizer, pair), readable(filled, row, tokenizer)
        texts = {"masked": shown["shown"], "predicted": predicted["shown"], "truth": shown["truth"]}
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
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    inputs, targets = read_batch(tensors, config.data.max_seq_length)
    with evaluation_mode(model):
        outputs = model(inputs)
    said_K = outputs.logits_KV[:, :num_pieces].argmax(-1)[targets.weight_K > 0].numpy()
    order_B2 = outputs.sentence_order_B2
    return said_K, None if order_B2 is None else order_B2.argmax(-1).numpy()


def readable(
    batch: Mapping[str, np.ndarray], row: int, tokenizer: Tokenizer, pair: Literal["order", "next"] = "order"
) -> dict[str, str]:
    """One example of a `rows` or `packed` batch, of pairs of that kind.

    Returns:
        "truth": the text, segments in the order shown, parted by " | ". "shown": the same with <mask> for hidden tokens
        and random ones where they stand. "predict": the tokens to predict, in order. "order": one of `ORDERS`, or ""
        where that is no question.
    """
    ids, places, originals = _example(batch, row)
    truth = ids.copy()
    truth[places] = originals
    is_start = tokenizer.is_word_start()
    order = ""
    if "next_sentence_label" in batch and (truth == tokenizer.special.sep).sum() > 1:
        order = ORDERS[pair][int(batch["next_sentence_label"][row])]
    return {
        "truth": _text(truth, truth, tokenizer, is_start),
        "shown": _text(ids, truth, tokenizer, is_start),
        "predict": " ".join(tokenizer.pieces()[int(token)] for token in originals),
        "order": order,
    }


def _example(batch: Mapping[str, np.ndarray], row: int) -> tuple[NDArray, NDArray, NDArray]:
    """Ids without padding, positions of the predictions among them, and the original ids there."""
    if "cu_seqlens" in batch:
        begin, end = (int(edge) for edge in batch["cu_seqlens"][row : row + 2])
        places = batch["masked_lm_positions"]
        is_own = (batch["masked_lm_weights"] > 0) & (begin <= places) & (places < end)
        return batch["input_ids"][begin:end], places[is_own] - begin, batch["masked_lm_ids"][is_own]
    is_own = batch["masked_lm_weights"][row] > 0
    ids = batch["input_ids"][row, : batch["lengths"][row]]
    return ids, batch["masked_lm_positions"][row, is_own], batch["masked_lm_ids"][row, is_own]


def _text(ids: NDArray, truth: NDArray, tokenizer: Tokenizer, is_start: NDArray[np.bool_]) -> str:
    """Decoded between control tokens; a blank before a hidden token that begins a word."""
    parts, run = [], []
    for token, true in zip(ids[1:-1].tolist(), truth[1:-1].tolist(), strict=True):
        if token not in (tokenizer.special.mask, tokenizer.special.sep):
            run.append(token)
            continue
        parts.append(_decoded(run, tokenizer, is_start))
        parts.append(" | " if token == tokenizer.special.sep else " " * int(is_start[true]) + HIDDEN)
        run = []
    parts.append(_decoded(run, tokenizer, is_start))
    return "".join(parts).strip().replace(" |  ", " | ")


def _decoded(run: list[int], tokenizer: Tokenizer, is_start: NDArray[np.bool_]) -> str:
    """With the blank before its first word that decoding drops."""
    return " " * int(is_start[run[0]]) + tokenizer.decode(run).strip() if run else ""
