"""Labelled texts as batches, any examples in any order. Torch-free.

Dimensions: B examples, T tokens of all of them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrainkit.data.row_files import open_rows
from pretrainkit.data.source import BatchSource, Records
from pretrainkit.data.subsets import slots
from pretrainkit.data.supply import Supply
from pretrainkit.data.task_sources import TaskSource
from pretrainkit.errors import DataError
from pretrainkit.eval.metrics import accuracy, pearson, spearman
from pretrainkit.recipes.glue.config import GlueDataConfig, GlueRun
from pretrainkit.recipes.glue.examples import Examples, encoded, read_rows
from pretrainkit.recipes.glue.tasks import LABEL_COLUMNS, TextTask, named_task
from pretrainkit.training.text_reader import TextReader

Ints = NDArray[np.int64]


class TextSource(BatchSource):
    """Examples of one or several splits, each a component."""

    def __init__(self, parts: Sequence[Examples], reader: TextReader, fingerprint: str) -> None:
        """
        Args:
            parts: One for each component.
            reader: Of the encoder: what stands around texts.
            fingerprint: Of the rows and of all settings that examples depend on.
        """
        self.parts, self.reader, self._fingerprint = tuple(parts), reader, fingerprint

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.parts))

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _begins(self) -> list[list[Ints]]:
        """Where each text begins among the tokens, by component and text."""
        return [[np.cumsum(lengths) - lengths for lengths in part.lengths] for part in self.parts]

    def summary(self) -> dict[str, Any]:
        lengths = np.concatenate([sum(part.lengths) for part in self.parts])
        added = self.reader.num_added(is_pair=len(self.parts[0].lengths) == 2)
        return {
            "fingerprint": self.fingerprint,
            "examples": len(lengths),
            "tokens": int(lengths.sum()),
            "mean_length": float(lengths.mean()) + added,
        }

    def lengths(self, records: Records) -> Ints:
        """(B,) tokens of each example, control tokens too."""
        found = np.empty(len(records), np.int64)
        for number, part in enumerate(self.parts):
            own = records.source == number
            found[own] = sum(lengths[records.index[own]] for lengths in part.lengths)
        return found + self.reader.num_added(is_pair=len(self.parts[0].lengths) == 2)

    def build(self, records: Records) -> dict[str, np.ndarray]:
        """`input_ids`, `token_type_ids`, `positions` (T,) int32, one example after another; `cu_seqlens` (B + 1,) and
        `lengths` (B,) int32; `label` (B,) int64 or float32, -1 or NaN where there is none."""
        ids = [self._example(int(source), int(index)) for source, index in zip(records.source, records.index)]
        firsts = np.array([first for _, first in ids], np.int64)
        lengths = np.array([len(example) for example, _ in ids], np.int64)
        types = np.tile(np.array([0, 1], np.int32), len(ids))
        labels = [self.parts[int(s)].label[int(i)] for s, i in zip(records.source, records.index)]
        return {
            "input_ids": np.concatenate([example for example, _ in ids]) if ids else np.empty(0, np.int32),
            "token_type_ids": np.repeat(types, np.stack([firsts, lengths - firsts], axis=1).ravel()),
            "positions": slots(lengths).astype(np.int32),
            "cu_seqlens": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            "lengths": lengths.astype(np.int32),
            "label": np.array(labels, self.parts[0].label.dtype),
        }

    def _example(self, source: int, index: int) -> tuple[NDArray[np.int32], int]:
        """(ids, how many of them have type 0)."""
        part, begins, reader = self.parts[source], self._begins[source], self.reader
        texts = [
            tokens[begin[index] : begin[index] + lengths[index]]
            for tokens, begin, lengths in zip(part.tokens, begins, part.lengths, strict=True)
        ]
        if len(texts) == 1:
            ids = np.concatenate([reader.before, texts[0], reader.after])
            return ids.astype(np.int32), len(ids)
        ids = np.concatenate([reader.before, texts[0], reader.between, texts[1], reader.after])
        return ids.astype(np.int32), len(reader.before) + len(texts[0]) + len(reader.between)


def task_of(data: GlueDataConfig) -> TextTask:
    """The task that a config names, or that its columns make."""
    if data.task is not None:
        return named_task(data.task)
    return TextTask(
        name="own",
        texts=tuple((name,) for name in data.texts),
        label=LABEL_COLUMNS if data.label is None else (data.label,),
        kind=data.kind,
        metrics=(accuracy,) if data.kind == "classes" else (pearson, spearman),
    )


def rows_of(data: GlueDataConfig, task: TextTask, split: str) -> list[tuple[TaskSource, str]]:
    """Where the rows of `split` are, each source with its name of the split: files of the config, or the task's data.

    Raises:
        DataError: They are not there.
    """
    files = data.train if split == "train" else data.valid
    if files:
        return [(open_rows(file.path, split), split) for file in files]
    if task.data is None:
        raise DataError(f"data.{split} names no files\n  give it as data.{split}=FILE.jsonl")
    source = task.data.supplied(Supply(folders=data.task_folders))
    source.check_split(split)
    return [(source, split)]


def valid_splits(data: GlueDataConfig, task: TextTask) -> Mapping[str, str]:
    """Held-out splits and what their metrics begin with."""
    return {"valid": ""} if data.valid or task.data is None else task.valid_splits


def open_texts(config: GlueRun, reader: TextReader, splits: Sequence[str], *, needs_label: bool) -> TextSource:
    """The examples of some splits of a bound config, one component for each place they lie in.

    Raises:
        DataError: There are none, or they are broken.
    """
    task, classes, length = task_of(config.data), config.model.classes or (), config.data.max_seq_length
    digest = hashlib.blake2b(f"{reader.fingerprint} {length} {classes}".encode(), digest_size=16)
    parts = []
    for split in splits:
        for source, name in rows_of(config.data, task, split):
            rows = read_rows(source, name, task, needs_label=needs_label)
            if not rows.index:
                raise DataError(f"there are no rows in {name} of task {task.name}\n  leave it out, or give other files")
            parts.append(encoded(rows, classes, reader, length))
            digest.update(f"\n{source.fingerprint(name)}".encode())
    return TextSource(parts, reader, digest.hexdigest())
