"""Check of a run's training data before training."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from pretrainkit.config.paths import absolute_paths
from pretrainkit.corpus.stats import histogram, language_counts, most_frequent
from pretrainkit.data.source import Records, unreadable
from pretrainkit.recipes.capabilities import (
    ChecksData,
    ChecksFiles,
    DataCheck,
    EncodesText,
    ShowsExamples,
    StoredRecord,
)
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.running.initial import build_loader, with_num_steps
from pretrainkit.running.loading import measure_loading, measured_steps
from pretrainkit.running.run import check_new_run, checked
from pretrainkit.tasks.rates import spread, table

if TYPE_CHECKING:
    from pretrainkit.data.loader import Loader
    from pretrainkit.data.source import BatchSource
    from pretrainkit.training.objective import AnyObjective
    from pretrainkit.training.run import RunConfig
    from pretrainkit.training.watch import Sample
    from pretrainkit.workers.processes import Progress

_MAX_STEPS = 64
"""Number of steps whose batches are searched for examples of every component."""
_MAX_TEXTS = 500
"""Number of texts whose languages are counted."""
_MAX_COMPARED = {"train": 50_000, "valid": 5_000}
"""Maximum number of examples in which copies are searched."""
_COMPARING_SECONDS = 4.0
_MAX_COUNTED = 256
_COUNTING_SECONDS = 2.0
"""Maximum number of examples whose real tokens are counted one by one, and maximum time for it."""
_BLOCK = 64
_MAX_NAMED = 5


def check_data(config: RunConfig, num: int, is_deep: bool, progress: Progress) -> DataCheck:
    """Return the summary of a config's training data, see `pretrainkit.check_data`."""
    recipe = find_recipe(config.recipe)
    config = absolute_paths(config)
    if is_deep and isinstance(recipe, ChecksFiles) and (problems := recipe.check_files(config, progress)):
        return DataCheck({}, [], problems=problems)
    config = checked(recipe, config)[0]
    source = recipe.open_data(config, "train")
    held_out = recipe.open_data(config, "valid") if config.has_held_out_data else None
    if is_deep and not isinstance(recipe, ChecksFiles):
        sources = {"train": source} if held_out is None else {"train": source, "valid": held_out}
        if problems := [
            problem
            for split, read in sources.items()
            for problem in unreadable(read, f"reading data.{split}", progress)
        ]:
            return DataCheck({}, [], problems=problems)
    check_new_run(recipe, config, source)
    loader = build_loader(config, source, rank=0, world_size=1)
    config = with_num_steps(config, loader)
    steps, size, summary = config.total_steps, config.data.batch_size, source.summary()
    figures: dict[str, Any] = {
        "training examples": sum(source.sizes),
        "training": f"{steps:,} steps of {size:,} examples, {loader.epochs_for(steps):.2f} epochs",
    }
    if held_out is not None:
        figures["held-out examples"] = sum(held_out.sizes)
    if len(rows := summary.get("mixture", [])) > 1:
        figures["mixture"] = "\n".join(table(rows, steps * size))
    if is_deep:
        num_read = sum(source.sizes) + (0 if held_out is None else sum(held_out.sizes))
        figures["broken records"] = f"none: all {num_read:,} examples were read"
    objective = recipe.build_objective(config)
    lengths_N = _lengths(loader, objective)
    figures |= _batch_figures(config, loader, lengths_N, objective)
    notes: list[str] = []
    if isinstance(recipe, ChecksData):
        more, notes = recipe.check_data(config, source, summary, loader.global_records)
        figures |= more
    result = DataCheck(figures, notes, lengths=histogram(lengths_N) if np.ptp(lengths_N) else {})
    if not isinstance(recipe, ShowsExamples):
        return result
    result.examples.extend(_examples(recipe, config, loader, num))
    texts = [record.text for record in _stored(recipe, config, source, _MAX_TEXTS) if record.text]
    if texts:
        result.languages.update(_languages(texts, figures, notes))
    elif isinstance(recipe, EncodesText):  # rows of rendered text
        figures["languages"] = (
            "unknown: the examples are pictures without their text; pretrainkit render --column text stores both"
        )
    if held_out is not None:
        _compare(recipe, config, source, held_out, figures, notes)
    return result


def _lengths(loader: Loader, objective: AnyObjective) -> np.ndarray:
    """Return the lengths in tokens of the examples of the first steps, without padding."""
    source, steps = loader.source, measured_steps(loader)
    lengths_N = np.concatenate([source.lengths(loader.global_records(step)) for step in steps])
    if np.ptp(lengths_N):
        return lengths_N
    # Such sources give every example the same size; the real tokens are counted in some examples, one by one.
    began, real = math.inf, list[int]()
    for step in steps:
        records = loader.global_records(step)
        for row in range(len(records.index)):
            real.append(objective.cost(source.build(records.take(slice(row, row + 1)))).tokens)
            began = min(began, time.perf_counter())  # after the first example, which also loads modules
            if len(real) == _MAX_COUNTED or time.perf_counter() - began > _COUNTING_SECONDS:
                return np.array(real)
    return np.array(real)


def _batch_figures(config: RunConfig, loader: Loader, lengths_N: np.ndarray, objective: AnyObjective) -> dict[str, str]:
    """Return the lengths of examples, the share of the microbatches that is not padding, and the speed at which
    examples are prepared on this machine."""
    low, middle, high = np.percentile(lengths_N, (5, 50, 95))
    loading = measure_loading(config, loader, objective)
    return {
        "example lengths": f"mean {lengths_N.mean():,.0f}, median {middle:,.0f}, 90 % from {low:,.0f} to {high:,.0f}, "
        f"longest {lengths_N.max():,} tokens (of {len(lengths_N):,} examples)",
        "fill": f"{loading.fill:.1%} of the computed tokens are real, the rest is padding",
        "data loading": f"{loading.examples_per_second:,.0f} examples per second in one thread of this machine",
    }


def _examples(recipe: ShowsExamples[Any], config: RunConfig, loader: Loader, num: int) -> Iterator[Sample]:
    """Yield the first `num` examples of each component, in the order of training."""
    chosen: list[list[Records]] = [[] for _ in loader.source.sizes]
    num_left = np.minimum(loader.source.sizes, num)
    for step in range(loader.first_step, loader.first_step + _MAX_STEPS):
        records = loader.global_records(step)
        for component in np.flatnonzero(num_left):
            rows = np.flatnonzero(records.source == component)[: num_left[component]]
            num_left[component] -= len(rows)
            chosen[component].append(records.take(rows))
        if not num_left.any():
            break
    parts = [part for parts in chosen for part in parts]
    arrays = (np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Records))
    records = Records(*arrays)
    stored = recipe.stored_records(config, loader.source, records)
    for record, example in zip(stored, recipe.show_examples(config, loader.source, records), strict=True):
        yield {"example": record.name, **example}


def _stored(
    recipe: ShowsExamples[Any], config: RunConfig, source: BatchSource, num: int, seconds: float | None = None
) -> Iterator[StoredRecord]:
    """Yield at most `num` records, evenly spread over the components in proportion to their sizes. Stop after
    `seconds`."""
    began, total = time.perf_counter(), sum(source.sizes)
    for component, size in enumerate(source.sizes):
        index = spread(size, -(-num * size // total))
        for begin in range(0, len(index), _BLOCK):
            if seconds is not None and time.perf_counter() - began > seconds:
                return
            records = Records.of_first_epoch(index[begin : begin + _BLOCK], component)
            yield from recipe.stored_records(config, source, records)


def _languages(texts: list[str], figures: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    kind, counts = language_counts(texts)
    figures[f"{kind}s"] = f"{most_frequent(counts)} (of {len(texts):,} examples)"
    if kind == "script":
        notes.append("scripts are counted; to count languages, install py3langid: pip install 'pretrainkit[languages]'")
    return {"of": kind, "counts": counts}


def _compare(
    recipe: ShowsExamples[Any],
    config: RunConfig,
    source: BatchSource,
    held_out: BatchSource,
    figures: dict[str, Any],
    notes: list[str],
) -> None:
    """Count held-out examples that are also in the training data. Only hashes are kept in memory."""
    names: dict[bytes, list[str]] = {}
    num_held_out = num_trained = 0
    for record in _stored(recipe, config, held_out, _MAX_COMPARED["valid"], _COMPARING_SECONDS):
        num_held_out += 1
        if record.content:
            names.setdefault(_hash(record), []).append(record.name)
    copies: list[tuple[str, str]] = []
    for record in _stored(recipe, config, source, _MAX_COMPARED["train"], _COMPARING_SECONDS):
        num_trained += 1
        if record.content:
            copies += [(name, record.name) for name in names.pop(_hash(record), ())]
    of_all = f" (of {num_all:,})" if num_held_out < (num_all := sum(held_out.sizes)) else ""
    examples = [f"held out: {name}, training: {trained}" for name, trained in copies[:_MAX_NAMED]]
    compared = f"compared with {num_trained:,} of {sum(source.sizes):,} training examples"
    figures["held-out copies"] = "\n".join(
        [f"{len(copies):,} of {num_held_out:,} held-out examples{of_all}, {compared}", *examples]
    )
    if copies:
        notes.append(
            f"{len(copies) / num_held_out:.1%} of the held-out examples are also in the training data, so the metrics "
            "on them are too good: remove them from one of the two, unless they are only common phrases"
        )


def _hash(record: StoredRecord) -> bytes:
    return hashlib.blake2b(record.content, digest_size=16).digest()
