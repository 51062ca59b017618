"""Held-out examples for the report: what the model read, what it said, and the truth.

Dimensions: K target tokens.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import nn

from pretrainkit.data.source import BatchSource, Records
from pretrainkit.dist.weights import on_cpu
from pretrainkit.eval.evaluator import evaluation_mode
from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.denoising import TextIds
from pretrainkit.recipes.t5.inputs import read_batch
from pretrainkit.recipes.t5.predictor import Predictor
from pretrainkit.recipes.t5.source import DenoisingSource
from pretrainkit.recipes.t5.task_source import TaskBatches
from pretrainkit.recipes.t5.texts import decode
from pretrainkit.tasks.shares import spread
from pretrainkit.tokenizers.load import Tokenizer, load_tokenizer


def sample(config: T5Run, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, str]]:
    """`num` examples, evenly spread over the first component or over tasks; none without a copy of the tokenizer.

    Returns:
        Per example `masked`, `predicted` (the likeliest piece in each place, given the true ones before it) and
        `truth`. Language models have no `masked`. Of tasks, `task` where there are several, `input`, `predicted` (the
        whole answer, greedily) and `truth`.
    """
    if isinstance(source, TaskBatches):
        return [] if config.model.kind == "encoder_only" else _answered(config, model, source, num)
    if not isinstance(source, DenoisingSource):
        return []
    folder, size = Path(source.components[0].shards.tokenizer_folder), source.sizes[0]
    if not folder.is_dir() or not size:
        return []
    tokenizer, ids = load_tokenizer(folder), source.components[0].denoiser.ids
    found = []
    for index in spread(size, num):
        zero = np.zeros(1, np.int64)
        records = Records(zero, zero, np.array([index]), zero.astype(np.uint64))
        inputs, targets = source.examples(records)
        texts = {} if inputs is None else {"masked": readable(inputs.values.tolist(), tokenizer, ids)}
        said = _said(config, model, source.build(records))
        texts["predicted"] = readable(said, tokenizer, ids)
        texts["truth"] = readable(targets.values.tolist(), tokenizer, ids)
        found.append(texts)
    return found


def _answered(config: T5Run, model: nn.Module, source: TaskBatches, num: int) -> list[dict[str, str]]:
    """Of `num` tasks in the order of the mixture, or so many examples of fewer."""
    tasks = [task for task in source.tasks if len(task)][:num]
    picked = []
    for number, task in enumerate(tasks):
        share = num // len(tasks) + (number < num % len(tasks))
        picked += [(task, index) for index in spread(len(task), share)]
    if not picked:
        return []
    vocabulary = tasks[0].features["targets"].vocabulary
    examples = [task.example(index) for task, index in picked]
    found = Predictor(config, on_cpu(model), end_id=vocabulary.eos_id).predict(examples)
    rows = []
    for (task, _), example, answer in zip(picked, examples, found, strict=True):
        texts = {"task": task.name} if len(source.tasks) > 1 else {}
        if "inputs" in example:
            texts["input"] = decode(example["inputs"], vocabulary)
        texts |= {"predicted": decode(answer, vocabulary), "truth": decode(example["targets"], vocabulary)}
        rows.append(texts)
    return rows


def readable(tokens: Sequence[int], tokenizer: Tokenizer, ids: TextIds) -> str:
    """The text of `tokens`, with sentinels by their names and without the end mark."""
    names = {sentinel: f"<extra_id_{number}>" for number, sentinel in enumerate(ids.sentinels)}
    parts = []
    kept = (token for token in tokens if token != ids.end)
    for is_text, group in groupby(kept, key=lambda token: token < tokenizer.vocab_size and token not in names):
        run = list(group)
        parts += [tokenizer.decode(run)] if is_text else [names.get(token, "?") for token in run]
    return " ".join(part for part in parts if part)


@torch.no_grad()
def _said(config: T5Run, model: nn.Module, batch: dict[str, np.ndarray]) -> list[int]:
    """The likeliest id of each target token. On the CPU."""
    model = on_cpu(model)
    inputs, _ = read_batch({name: torch.from_numpy(array) for name, array in batch.items()}, config.model.kind)
    with evaluation_mode(model):
        return model(inputs).argmax(-1).tolist()
