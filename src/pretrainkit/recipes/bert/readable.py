"""Examples as text, for eyes: what the model is shown, and what it is to say."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pretrainkit.tokenizers.load import Tokenizer

HIDDEN = "<mask>"


ORDERS = {"order": ("as written", "swapped"), "next": ("as written", "from elsewhere")}
"""By kind of pair: what the labels 0 and 1 of an example are called."""


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
