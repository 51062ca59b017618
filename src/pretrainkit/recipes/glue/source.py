"""Batches of labelled texts, with any examples in any order. Imports no torch.

Dimensions: B examples.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pretrainkit.data.source import BatchSource, Records
from pretrainkit.errors import DataError
from pretrainkit.eval.metrics import accuracy, pearson, spearman
from pretrainkit.recipes.glue.config import GlueDataConfig, GlueRun
from pretrainkit.recipes.glue.kinds.labelled import Labelled
from pretrainkit.recipes.glue.kinds.spans import SpanExamples
from pretrainkit.recipes.glue.kinds.texts import TextExamples
from pretrainkit.recipes.glue.kinds.trees import TreeExamples
from pretrainkit.recipes.glue.kinds.words import TagExamples
from pretrainkit.recipes.glue.tasks import LABEL_COLUMNS, Kind, TextTask, named_task
from pretrainkit.recipes.text_reader import Ints, TextReader
from pretrainkit.tasks.sources import TaskSource
from pretrainkit.tasks.supply import Supply
from pretrainkit.training.data_config import SourceConfig

KINDS: Mapping[Kind, type[Labelled]] = {
    "classes": TextExamples,
    "numbers": TextExamples,
    "tags": TagExamples,
    "spans": SpanExamples,
    "tree": TreeExamples,
}
"""Kinds of tasks by name."""

NO_TEXTS = ("index", "truth", "id", "num_skipped")
"""Fields of rows that are not texts."""
_MANY_FULL = 0.1
_logger = logging.getLogger(__name__)


class TextSource(BatchSource):
    """Labelled examples. Each component has the rows of one file, or of one split of a task's data."""

    def __init__(self, examples: Labelled, fingerprint: str) -> None:
        """`examples` are those of all components; `fingerprint` covers the rows and all settings that affect them."""
        self.examples, self._fingerprint = examples, fingerprint
        self._lengths = examples.read.lengths()
        self._begins = np.cumsum(examples.sizes) - np.array(examples.sizes, np.int64)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.examples.sizes

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def summary(self) -> dict[str, Any]:
        lengths = self._lengths
        return {
            "fingerprint": self.fingerprint,
            "examples": len(lengths),
            "tokens": int(lengths.sum()),
            "mean_length": float(lengths.mean()),
            **self.examples.figures(),
        }

    def lengths(self, records: Records) -> Ints:
        return self._lengths[self.indices(records)]

    def share_of_length(self, length: int) -> float:
        """Return the share of the examples with at least `length` tokens."""
        return float((self._lengths >= length).mean())

    def build(self, records: Records) -> dict[str, np.ndarray]:
        """Return the encoder's input, one example after another, with `cu_seqlens` (B + 1,) and `lengths` (B,) int32,
        and the targets of the examples; see `ReadExamples.build` and `Labelled.truths`."""
        index_B = self.indices(records)
        batch = self.examples.read.build(index_B)
        return {**batch, **self.examples.truths(index_B, batch["cu_seqlens"][:-1].astype(np.int64))}

    def indices(self, records: Records) -> Ints:
        """Return the numbers of the examples over all components."""
        return self._begins[records.source] + records.index


def task_of(data: GlueDataConfig) -> TextTask:
    """Return the task that a config names, or the task that its columns define."""
    if data.task is not None:
        return named_task(data.task)
    usual = LABEL_COLUMNS if data.kind in ("classes", "numbers") else ()
    return TextTask(
        name="own",
        texts=tuple((name,) for name in data.texts),
        label=usual if data.label is None else (data.label,),
        kind=data.kind,
        metrics=(pearson, spearman) if data.kind == "numbers" else (accuracy,),
    )


def rows_of(data: GlueDataConfig, task: TextTask, split: str) -> list[tuple[TaskSource, str]]:
    """Find the rows of `split`: files of the config, or the task's data. Returns each source with its name of the
    split. Raises DataError if they do not exist."""
    files = data.train if split == "train" else data.valid
    if files:
        return [(KINDS[task.kind].open(file.path, split), split) for file in files]
    if task.data is None:
        raise DataError(f"data.{split} names no files\n  set data.{split}=FILE.jsonl")
    source = task.data.supplied(Supply(folders=data.task_folders))
    source.check_split(split)
    return [(source, split)]


def valid_splits(data: GlueDataConfig, task: TextTask) -> Mapping[str, str]:
    """Map held-out splits to the prefixes of their metrics."""
    return {"valid": ""} if data.valid or task.data is None else task.valid_splits


def open_texts(config: GlueRun, reader: TextReader, splits: Sequence[str]) -> TextSource:
    """Return the labelled examples of some splits of a bound config, with one component for each pair of `rows_of`.
    Raises DataError if there are none or they are broken."""
    task, classes, length = task_of(config.data), config.model.classes or (), config.data.max_seq_length
    more = KINDS[task.kind].settings(config, task)
    digest = hashlib.blake2b(f"{reader.fingerprint} {length} {classes}{more}".encode(), digest_size=16)
    places = []
    for split in splits:
        for source, name in rows_of(config.data, task, split):
            places.append(read_place(source, name, task, needs_label=True))
            digest.update(f"\n{source.fingerprint(name)}".encode())
    return TextSource(KINDS[task.kind](places, config, task, reader), digest.hexdigest())


def read_place(source: TaskSource, split: str, task: TextTask, *, needs_label: bool) -> list[Any]:
    """Read all rows of a split, in the form of the kind of task. Raises DataError if there are none, or one lacks a
    column or a required label."""
    make = KINDS[task.kind].row
    numbers = range(source.num_examples(split))
    rows = [make(source.example(split, n), split, n, task, needs_label=needs_label) for n in numbers]
    if not rows:
        raise DataError(f"there are no rows in {split} of task {task.name}\n  leave it out, or use other files")
    return rows


def report_copies(train: TextSource, config: GlueRun) -> None:
    """Log a warning if rows of the held-out files have the same texts as training rows."""
    task = task_of(config.data)
    places = rows_of(config.data, task, "valid") if config.data.valid else []
    held_out = [_texts(row) for place in places for row in read_place(*place, task, needs_label=True)]
    copies = set(held_out).intersection(map(_texts, train.examples.rows))
    if num := sum(texts in copies for texts in held_out):
        _logger.warning(
            "%s of the %s held-out rows have the same texts as rows of data.train, so the metrics are too good; leave "
            "them out of data.train or data.valid",
            *(f"{num:,}", f"{len(held_out):,}"),
        )


def report_full(train: TextSource, config: GlueRun) -> None:
    """Log a warning if many training texts are as long as an example may be, so most of them were cut."""
    length = config.data.max_seq_length
    share = train.share_of_length(length)
    if isinstance(train.examples, TextExamples) and share >= _MANY_FULL:
        _logger.warning(
            "%.0f %% of the training examples have data.max_seq_length=%d tokens; longer texts are cut at their end\n"
            "  raise data.max_seq_length, if the encoder was trained on longer texts",
            *(100 * share, length),
        )


def report_misplaced(train: TextSource) -> None:
    """Log a warning if answers are not where the training rows place them. Raises DataError if that is true of all."""
    figures = train.examples.figures()
    num = figures.get("misplaced_answers", 0)
    known = figures.get("questions", 0) - figures.get("questions_without_answer", 0)
    if not num:
        return
    problem = f"the answers to {num:,} of {known:,} questions are not at their answer_start in the context"
    advice = "answer_start counts characters of the context from 0"
    if num == known:
        raise DataError(f"{problem}\n  correct the file: {advice}")
    _logger.warning("%s, so these questions are not trained on; %s", problem, advice)


def _texts(row: Any) -> str:
    return repr([value for name, value in vars(row).items() if name not in NO_TEXTS])


def names_in(path: str) -> tuple[str, ...]:
    """Read class names from the lines of a file. Raises DataError if it cannot be read, a name occurs twice, or there
    are fewer than two."""
    try:
        names = [line.strip() for line in Path(path).expanduser().read_text("utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}\n  use a text file with one class per line") from error
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice or len(names) < 2:
        problem = f"names {twice[0]} twice" if twice else f"has {len(names)} class names"
        raise DataError(f"{path} {problem}\n  write at least two different classes, one per line")
    return tuple(names)


_USUAL_CLASSES: Mapping[Kind, int] = {"classes": 2, "tags": 17, "tree": 37}
"""Number of classes to assume without data: two, or the parts of speech and relations of Universal Dependencies."""


def without_data(config: GlueRun) -> tuple[GlueRun, str]:
    """Return the config with assumed classes, and a description of what `assumed_truths` and the encoder's recipe
    assume."""
    assumptions, data = f"examples that fill data.max_seq_length={config.data.max_seq_length}", config.data
    if data.task is None:
        has_texts = data.texts or data.kind not in ("classes", "numbers")
        valid = data.valid or (SourceConfig(path="held-out data"),)
        config = config.changed(data={"texts": data.texts if has_texts else ("text",), "valid": valid})
    task = task_of(config.data)
    classes = task.classes if config.model.classes is None else config.model.classes
    if classes is None and (num := _USUAL_CLASSES.get(task.kind)):
        classes = tuple(map(str, range(num)))
        assumptions += f", {num} classes"
    return config.changed(model={"classes": classes or ()}), assumptions


def assumed_truths(config: GlueRun, ends_B1: np.ndarray) -> dict[str, np.ndarray]:
    """Return the targets that `Labelled.truths` would add to examples with these `cu_seqlens`. Every slot between the
    first and the last one is assumed to be a word; the second text of a pair is assumed to be half of the slots."""
    task, begins_B, lengths_B = task_of(config.data), ends_B1[:-1].astype(np.int64), np.diff(ends_B1)
    none_B = np.zeros(len(begins_B), np.int64)
    if task.kind in ("tags", "tree"):
        # All slots except the first and the last of each example, which are control tokens.
        spans = zip(begins_B, lengths_B, strict=True)
        word_W = np.concatenate([np.arange(begin + 1, begin + length - 1) for begin, length in spans])
        words = {"word_begins": word_W, "word_ends": word_W + 1, "num_words": lengths_B.astype(np.int64) - 2}
        truth = np.zeros_like(word_W)
        candidates = np.arange(lengths_B.max(initial=2) - 1)
        tree = {"head": truth, "relation": truth, "candidates": candidates}
        return words | ({"label": truth} if task.kind == "tags" else tree)
    if task.kind == "spans":
        return {"first_slot": none_B, "last_slot": none_B}
    label_B = none_B if task.kind == "classes" else none_B.astype(np.float32)
    return {"label": label_B} | ({"second_begins": (lengths_B // 2).astype(np.int32)} if task.is_pair else {})
