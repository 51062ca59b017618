"""Checks of a run's data before training: vocabulary, lengths, fill, expected first loss and examples; and the loss of
guessing target tokens by their frequency, the plateau that a model must leave."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.source import Records, unreadable
from pretrainkit.errors import PretrainKitError
from pretrainkit.recipes.capabilities import StoredRecord
from pretrainkit.recipes.recipe import Split
from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.denoising import describe
from pretrainkit.recipes.t5.features import num_packed_rows
from pretrainkit.recipes.t5.source import DenoisingSource, bind, open_source
from pretrainkit.recipes.t5.task_source import TaskBatches, registry_of, warn_of_lacking
from pretrainkit.rng import fold, stream_key
from pretrainkit.tasks.rates import Share, spread
from pretrainkit.tokenizers.load import Tokenizer, load_tokenizer
from pretrainkit.tokenizers.shards import broken_shards
from pretrainkit.training.watch import Sample
from pretrainkit.workers.processes import Progress

_GOOD_FILL = 0.7
"""Rows that are less full than this benefit from packing."""
_MOST_SHOWN = 300
"""Maximum number of characters of a text that are printed."""
_MOST_IDS = 32
_LARGE = 100_000
"""Number of examples of a task above which a note suggests a cache."""
_NUM_PACKED = 16
"""Number of microbatches whose packed rows are counted."""
MAX_EXAMPLES = {"train": 16_384, "valid": 2_048}
_BLOCK = 512
_BASELINE_KEY = stream_key(0, "t5", "baseline")


def check_data(
    config: T5Run, source: DenoisingSource | TaskBatches, rows: Sequence[Share], records: Callable[[int], Records]
) -> tuple[dict[str, Any], list[str]]:
    """Return statistics and notes. `rows` is the mixture from the summary of the source; `records` returns the records
    of a step's batch."""
    warn_of_lacking(config, "valid")
    vocab_size, data = int(config.model.vocab_size or 0), config.data
    figures = _of_tasks(source) if isinstance(source, TaskBatches) else _of_denoisers(source)
    inputs = sum(row["examples"] * row["mean_input_length"] for row in rows)
    targets = sum(row["examples"] * row["mean_target_length"] for row in rows)
    figures["tokens of an epoch"] = f"{inputs:,.0f} of inputs, {targets:,.0f} of targets"
    first = slice(0, data.microbatch_size or data.batch_size)
    _, fill = _rows(source, records(0).take(first))
    if data.packing:
        needed = [num_packed_rows(config, *source.examples(records(step).take(first))) for step in range(_NUM_PACKED)]
        figures["packed rows"] = (
            f"{min(needed)} to {max(needed)} for the examples of the first {_NUM_PACKED} microbatches"
        )
    figures["first loss expected"] = f"{math.log(vocab_size) + 0.5:.2f} nats per target token, ln({vocab_size}) + 1/2"
    notes = []
    if not data.packing and fill < _GOOD_FILL:
        notes.append(f"only {fill:.0%} of the slots are tokens: data.packing=true puts several examples into a row")
    if isinstance(source, TaskBatches):
        notes += _cut(source)
        notes += _uncached(source)
    return figures, notes


def check_files(config: T5Run, progress: Progress) -> list[str]:
    """Return a message for each damaged folder of token shards, or for each example of a task that cannot be read."""
    if config.data.task is None:
        return broken_shards(source.path for source in (*config.data.train, *config.data.valid))
    config = bind(config)
    splits: tuple[Split, ...] = ("train", "valid") if config.has_held_out_data else ("train",)
    sources = {split: open_source(config, split) for split in splits}
    return [
        problem
        for split, source in sources.items()
        for problem in unreadable(source, f"reading data.{split}", progress)
    ]


def show_examples(source: DenoisingSource | TaskBatches, records: Records) -> list[Sample]:
    """Return examples as text, inputs, targets and ids, and the first row of their batch with the first of them."""
    examples = _task_examples(source, records) if isinstance(source, TaskBatches) else _segments(source, records)
    first, *others = examples
    row = "\n".join(f"  {name}: {_ids(array.astype(np.int64))}" for name, array in _rows(source, records)[0][0].items())
    return [{**first, "first row": row}, *others]


def stored_records(source: DenoisingSource | TaskBatches, records: Records) -> list[StoredRecord]:
    """Return segments of text, or the inputs and targets of tasks in the first epoch."""
    stored = []
    for name, index, component in _places(source, records):
        if isinstance(source, TaskBatches):
            task = source.tasks[component]
            example = task.example(index)
            parts = [np.asarray(example.get(feature, ())).reshape(-1) for feature in ("inputs", "targets")]
            text = "\n".join(task.features["targets"].vocabulary.decode(part.tolist()) for part in parts if len(part))
            content = b"".join(part.astype("<i4").tobytes() + b"\n" for part in parts)
        else:
            part_of = source.components[component]
            ids = part_of.index.read(part_of.shards, np.array([index])).values
            tokenizer, content = _tokenizer_of(part_of.shards.tokenizer_folder), ids.astype("<i4").tobytes()
            text = "" if tokenizer is None else tokenizer.decode(token for token in ids if token < tokenizer.vocab_size)
        stored.append(StoredRecord(name, text, content))
    return stored


def _places(source: DenoisingSource | TaskBatches, records: Records) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the index and the component of each record."""
    for component, index in zip(records.source.tolist(), records.index.tolist(), strict=True):
        split = f" {source.tasks[component].split}" if isinstance(source, TaskBatches) else ""
        yield f"{source.names[component]}{split} {index}", index, component


@lru_cache(maxsize=8)
def _tokenizer_of(folder: Path) -> Tokenizer | None:
    return load_tokenizer(folder) if folder.is_dir() else None


def _of_tasks(source: TaskBatches) -> dict[str, Any]:
    data, vocabulary = source.config.data, source.tasks[0].features["targets"].vocabulary
    return {
        "vocabulary": vocabulary.describe(),
        "sentinels": len(vocabulary.sentinel_ids),
        "lengths": f"inputs of {data.input_length} tokens, targets of {data.target_length}",
        "caches": f"{sum(task.is_cached for task in source.tasks)} of {len(source.tasks)} tasks",
    }


def _of_denoisers(source: DenoisingSource) -> dict[str, Any]:
    ids = source.components[0].denoiser.ids
    figures: dict[str, Any] = {
        "vocabulary": f"{source.components[0].shards.vocab_size:,} pieces, the end mark is id {ids.end}",
        "sentinels": f"{len(ids.sentinels)}, the first is id {ids.sentinels[0]}" if ids.sentinels else "none",
    }
    plans = []
    for denoiser in {part.denoiser.config: part.denoiser for part in source.components}.values():
        plan = denoiser.plan
        needed = f", up to {plan[2]} sentinels" if plan[2] else ""
        plans.append(
            f"{describe(denoiser.config)}: {plan[0]} tokens of text make inputs of up to {denoiser.input_length} and "
            f"targets of about {plan[1]} of {denoiser.target_length}{needed}"
        )
    return figures | {"lengths": "\n".join(plans)}


def _rows(source: DenoisingSource | TaskBatches, records: Records) -> tuple[list[dict[str, np.ndarray]], float]:
    """Return the rows of a batch, and the share of their slots that hold tokens."""
    batch = source.build(records)
    sides = [side for side in ("encoder", "decoder") if f"{side}_input_tokens" in batch]
    filled = slots = 0
    for side in sides:
        tokens = batch.get(f"{side}_segment_ids", batch.get(f"{side}_target_tokens", batch[f"{side}_input_tokens"]))
        filled, slots = filled + int(np.count_nonzero(tokens)), slots + tokens.size
    whole = {name: array for name, array in batch.items() if name != "num_examples"}
    return [{name: array[row] for name, array in whole.items()} for row in range(len(tokens))], filled / slots


def _segments(source: DenoisingSource, records: Records) -> Iterator[dict[str, Any]]:
    from pretrainkit.recipes.t5.evaluation import readable

    for row, (_, index, number) in enumerate(_places(source, records)):
        component = source.components[number]
        tokenizer, ids = _tokenizer_of(component.shards.tokenizer_folder), component.denoiser.ids
        text = component.index.read(component.shards, np.array([index]))
        inputs, targets = source.examples(records.take(slice(row, row + 1)))
        shown = {"tokens": _ids(text.values)}
        sequences = {"text": text, **({} if inputs is None else {"inputs": inputs}), "targets": targets}
        for name, sequence in sequences.items():
            values = sequence.values.tolist()
            written = _ids(sequence.values) if tokenizer is None else readable(values, tokenizer, ids)
            shown[name] = f"[{len(values)}] {_short(written)}"
        yield shown


def _task_examples(source: TaskBatches, records: Records) -> Iterator[dict[str, Any]]:
    for (_, index, component), epoch in zip(_places(source, records), records.epoch.tolist(), strict=True):
        task, shown = source.tasks[component], dict[str, Any]()
        for name, value in task.example(index, epoch).items():
            feature = task.features.get(name)
            if feature is None:
                shown[name] = _short(str(value))
            else:
                ids = np.asarray(value).reshape(-1)
                shown[f"{name} ids"] = f"[{len(ids)}] {_ids(ids)}"
                shown[name] = _short(repr(feature.vocabulary.decode(ids.tolist())))
        yield shown


def _uncached(source: TaskBatches) -> list[str]:
    registry = registry_of(source.config)
    large = [task for task in source.tasks if not task.is_cached and len(task) >= _LARGE]
    names = ", ".join(task.name for task in large if registry.get_task(task.name).cache_marker is not None)
    message = f"{names}: large and without a cache, so examples are computed while they are read"
    return [f"{message}; create a cache: pretrainkit tasks cache NAME --out DIR, data.caches=DIR"] if names else []


def _cut(source: TaskBatches) -> Iterator[str]:
    """Yield notes on how many sequences exceed the lengths of the run, from some examples of each task."""
    data = source.config.data
    limits = {"inputs": data.input_length, "targets": data.target_length}
    registry = registry_of(source.config)
    for task in source.tasks:
        try:  # examples without a length limit
            whole = registry.get_task(task.name).bind(task.split)
            some = [whole.example(index) for index in spread(len(whole))]
        except PretrainKitError:  # a step needs the lengths of the run
            continue
        for name, limit in limits.items():
            lengths = np.array([np.size(example.get(name, ())) for example in some])
            if num := int((lengths > limit).sum()):
                yield (
                    f"{num} of {len(lengths)} {name} of {task.name} are longer than data.{name[:-1]}_length={limit} "
                    f"and are cut; the longest has {lengths.max()} tokens"
                )


def _ids(values: np.ndarray) -> str:
    more = f" … {len(values)} in all" if len(values) > _MOST_IDS else ""
    return " ".join(map(str, values[:_MOST_IDS].tolist())) + more


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def unigram_loss(config: T5Run) -> float:
    """Return the cross-entropy of held-out targets under the add-one-smoothed frequencies of training targets, in nats
    per token, from at most 16,384 training and 2,048 held-out examples, spread over each component."""
    counts = _count(config, "train") + 1
    held_out = _count(config, "valid")
    nll_V = math.log(counts.sum()) - np.log(counts)
    return float((held_out * nll_V).sum() / held_out.sum())


def _count(config: T5Run, split: Literal["train", "valid"]) -> NDArray[np.int64]:
    source = open_source(config, split)
    counts = np.zeros(int(config.model.vocab_size or 0), np.int64)
    weights = np.array([size if weight is None else weight for size, weight in zip(source.sizes, source.weights)])
    for number, size in enumerate(source.sizes):
        num = min(size, max(1, round(MAX_EXAMPLES[split] * weights[number] / weights.sum())))
        chosen = np.array(spread(size, num), np.int64)
        for begin in range(0, len(chosen), _BLOCK):
            index = chosen[begin : begin + _BLOCK]
            _, targets = source.examples(Records.of_first_epoch(index, number, fold(_BASELINE_KEY, index)))
            counts += np.bincount(targets.values, minlength=len(counts))
    return counts
