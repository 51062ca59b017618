"""Examples as readable text: the masked input, the model's predictions, and the original text.

Dimensions: B examples, K predictions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pretrainkit.data.source import BatchSource, Records
from pretrainkit.dist.weights import on_cpu
from pretrainkit.eval.evaluator import evaluation_mode
from pretrainkit.recipes.bert.config import BertRun
from pretrainkit.recipes.bert.inputs import read_batch
from pretrainkit.recipes.bert.source import BertSource
from pretrainkit.recipes.capabilities import StoredRecord
from pretrainkit.tasks.rates import spread
from pretrainkit.tokenizers.load import Tokenizer, load_tokenizer
from pretrainkit.training.watch import Sample

HIDDEN = "<mask>"
ORDERS = {"order": ("as written", "swapped"), "next": ("as written", "from elsewhere")}
"""Names of the labels 0 and 1, by kind of pair."""


def sample(config: BertRun, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
    """Return `num` examples, evenly spread over the first component of the held-out data. Returns none if the shards
    have no copy of the tokenizer.

    Returns:
        Per example `masked`, `predicted` (the most likely piece in each place) and `truth`, with marks in all places
        that are predicted, also those that show a random or the true piece; with sentence order also `order`: the
        predicted label and the true one.
    """
    folder, size = Path(config.data.valid[0].path) / "tokenizer", source.sizes[0]
    if not folder.is_dir() or not size:
        return []
    tokenizer = load_tokenizer(folder)
    records = Records.of_first_epoch(spread(size, num))
    batch = source.build(records)
    predicted_K, order_B = _answers(config, model, batch, len(tokenizer.pieces()))
    filled = {**batch, "input_ids": batch["input_ids"].copy()}
    is_used = batch["masked_lm_weights"] > 0
    if "cu_seqlens" in batch:
        filled["input_ids"][batch["masked_lm_positions"][is_used]] = predicted_K
    else:
        filled["input_ids"][is_used.nonzero()[0], batch["masked_lm_positions"][is_used]] = predicted_K
    samples, pair, is_start = list[dict[str, Any]](), config.objective.sentence_pair, tokenizer.is_word_start()
    for row in range(len(records)):
        ids, places, originals = _example(batch, row)
        truth, predicted = ids.copy(), _example(filled, row)[0]
        truth[places] = originals
        columns = {"masked": ids, "predicted": predicted, "truth": truth}
        cells: dict[str, Any] = {}
        for column, shown_ids in columns.items():
            text, spans = _text(shown_ids, truth, tokenizer, is_start, places)
            rights = (predicted[places] == originals).tolist() if column == "predicted" else [None] * len(places)
            marks = [[*span, right] for span, right in zip(spans, rights, strict=True)]
            cells[column] = [{"text": text, "marks": marks}]
        if order_B is not None:
            order = readable(batch, row, tokenizer, pair)["order"]
            cells["order"] = f"{ORDERS[pair][int(order_B[row])]} (truth: {order})" if order else ""
        samples.append(cells)
    return samples


def show_examples(config: BertRun, source: BertSource, records: Records) -> list[Sample]:
    """Return each example as text before and after masking, with the token to predict and the token that the model
    reads in each place. Without a copy of the tokenizer, return ids."""
    batch, tokenizer = source.build(records), _tokenizer_of(source)
    mask, examples = source.special.mask, list[Sample]()
    for row in range(len(records)):
        ids, places, originals = _example(batch, row)
        if tokenizer is None:
            numbers = {"input ids": ids, "positions": places, "target ids": originals}
            examples.append({name: " ".join(map(str, values)) for name, values in numbers.items()})
            continue
        shown = readable(batch, row, tokenizer, config.objective.sentence_pair)
        pieces = tokenizer.pieces()
        targets = [
            pieces[true]
            if read == mask
            else f"{pieces[true]} (unchanged)"
            if read == true
            else f"{pieces[true]} (shown as {pieces[read]})"
            for true, read in zip(originals.tolist(), ids[places].tolist(), strict=True)
        ]
        example = {"text": shown["truth"], "masked": shown["shown"], "targets": " · ".join(targets)}
        examples.append(example | ({"order": shown["order"]} if shown["order"] else {}))
    return examples


def stored_records(source: BertSource, records: Records) -> list[StoredRecord]:
    """Return the chunks of text."""
    tokenizer, stored = _tokenizer_of(source), []
    for component, index in zip(records.source.tolist(), records.index.tolist(), strict=True):
        shards, chunks = source.components[component].shards, source.components[component].chunks
        ids = shards.gather_flat(chunks.starts[index : index + 1], chunks.lengths[index : index + 1])
        text = "" if tokenizer is None else tokenizer.decode(ids)
        stored.append(StoredRecord(f"{shards.folder} {index}", text, ids.astype("<u4").tobytes()))
    return stored


def _tokenizer_of(source: BertSource) -> Tokenizer | None:
    folder = source.components[0].shards.tokenizer_folder
    return load_tokenizer(folder) if folder.is_dir() else None


@torch.no_grad()
def _answers(
    config: BertRun, model: nn.Module, batch: dict[str, np.ndarray], num_pieces: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Compute, on the CPU, the most likely piece of each used prediction and the predicted order of each example. The
    model's table may have more rows than there are pieces."""
    model = on_cpu(model)
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    inputs, targets = read_batch(tensors, config.data.max_seq_length)
    with evaluation_mode(model):
        outputs = model(inputs)
    predicted_K = outputs.logits_KV[:, :num_pieces].argmax(-1)[targets.weight_K > 0].numpy()
    order_B2 = outputs.sentence_order_B2
    return predicted_K, None if order_B2 is None else order_B2.argmax(-1).numpy()


def readable(
    batch: Mapping[str, np.ndarray], row: int, tokenizer: Tokenizer, pair: Literal["order", "next"] = "order"
) -> dict[str, str]:
    """Return one example of a `rows` or `packed` batch as text. `pair` is the kind of its pairs.

    Returns:
        "truth": the text, with segments in the order shown, separated by " | ". "shown": the same text as the model
        reads it, with <mask> and random tokens. "predict": the tokens to predict, in order. "order": one of `ORDERS`,
        or "" if the example has one segment or sentence order is not trained.
    """
    ids, places, originals = _example(batch, row)
    truth = ids.copy()
    truth[places] = originals
    is_start = tokenizer.is_word_start()
    order = ""
    if "next_sentence_label" in batch and (truth == tokenizer.special.sep).sum() > 1:
        order = ORDERS[pair][int(batch["next_sentence_label"][row])]
    return {
        "truth": _text(truth, truth, tokenizer, is_start)[0],
        "shown": _text(ids, truth, tokenizer, is_start)[0],
        "predict": " ".join(tokenizer.pieces()[int(token)] for token in originals),
        "order": order,
    }


def _example(batch: Mapping[str, np.ndarray], row: int) -> tuple[NDArray, NDArray, NDArray]:
    """Return the ids without padding, the positions of the predictions among them, and the original ids there."""
    if "cu_seqlens" in batch:
        begin, end = (int(edge) for edge in batch["cu_seqlens"][row : row + 2])
        places = batch["masked_lm_positions"]
        is_own = (batch["masked_lm_weights"] > 0) & (begin <= places) & (places < end)
        return batch["input_ids"][begin:end], places[is_own] - begin, batch["masked_lm_ids"][is_own]
    is_own = batch["masked_lm_weights"][row] > 0
    ids = batch["input_ids"][row, : batch["lengths"][row]]
    return ids, batch["masked_lm_positions"][row, is_own], batch["masked_lm_ids"][row, is_own]


def _text(
    ids: NDArray, truth: NDArray, tokenizer: Tokenizer, is_start: NDArray[np.bool_], places: NDArray | None = None
) -> tuple[str, list[tuple[int, int]]]:
    """Decode the ids between control tokens, with a space before a hidden token that begins a word. Return the text,
    and the first and last character (exclusive) of each of the `places`, in order."""
    wanted = set() if places is None else set((places - 1).tolist())
    text, run, spans = "", list[int](), list[tuple[int, int]]()
    run_places = list[int]()

    def end_run() -> None:
        nonlocal text
        for number in run_places:
            edges = [len(_added(text, _decoded(run[:end], tokenizer, is_start))) for end in (number, number + 1)]
            spans.append((len(text) + edges[0], len(text) + edges[1]))
        text += _added(text, _decoded(run, tokenizer, is_start))
        run.clear()
        run_places.clear()

    for place, (token, true) in enumerate(zip(ids[1:-1].tolist(), truth[1:-1].tolist(), strict=True)):
        if token not in (tokenizer.special.mask, tokenizer.special.sep):
            if place in wanted:
                run_places.append(len(run))
            run.append(token)
            continue
        end_run()
        hidden = " | " if token == tokenizer.special.sep else _added(text, " " * int(is_start[true]) + HIDDEN)
        if place in wanted:
            spans.append((len(text), len(text) + len(hidden)))
        text += hidden
    end_run()
    spans = [(begin + len(text[begin:end]) - len(text[begin:end].lstrip()), end) for begin, end in spans]
    return text.rstrip(), spans


def _added(text: str, more: str) -> str:
    """Return what is added to a text: `more` without a space at the start, if the text ends with one or is empty."""
    return more if text and not text.endswith(" ") else more.removeprefix(" ")


def _decoded(run: list[int], tokenizer: Tokenizer, is_start: NDArray[np.bool_]) -> str:
    """Decode a run of ids, and restore the space before its first word, which decoding drops."""
    if not run:
        return ""
    text = tokenizer.readable(run).strip()
    return f" {text}" if is_start[run[0]] else text.removeprefix("##")  # as decoding does behind another piece
