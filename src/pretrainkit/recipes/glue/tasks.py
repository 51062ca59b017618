"""The tasks of GLUE: columns, classes, metrics, and the names of answers on the leaderboard. Imports no torch.

Source: Wang et al. 2018, https://arxiv.org/abs/1804.07461.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pretrainkit.errors import ConfigError
from pretrainkit.eval.metrics import accuracy, f1_invalid_wrong, matthews, pearson, spearman
from pretrainkit.tasks.named_data import glue_data
from pretrainkit.tasks.supply import OpenSource

Kind = Literal["classes", "numbers", "tags", "spans", "tree"]
NAMELESS_KINDS: tuple[Kind, ...] = ("numbers", "spans")
"""Kinds of tasks whose answers are not names of classes."""
HEAD_READS: Mapping[Kind, Literal["examples", "words", "spans"]] = {
    "classes": "examples",
    "numbers": "examples",
    "tags": "words",
    "spans": "spans",
}
"""Input of linear heads by the kind of task: the encoder's vector of an example, the features of the first slot of
each word, or the features of every slot. transformers has classes for these heads."""
Metric = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]
Columns = tuple[str, ...]

LABEL_COLUMNS: Columns = ("label", "gold_label", "is_duplicate", "Quality", "score")
"""Columns that may hold the label; the first existing one is used."""
INDEX_COLUMNS: Columns = ("idx", "index", "id")
"""Columns that may hold the index of a row; without them, rows are counted from 0."""


@dataclass(frozen=True, kw_only=True)
class TextTask:
    """Task on texts or pairs of texts, with its columns, classes and metrics."""

    name: str
    texts: tuple[Columns, ...] = ()
    """For each text of classes and numbers: the columns that may hold it; the first existing one is used."""
    label: Columns = LABEL_COLUMNS
    """Columns that may hold the label."""
    classes: tuple[str, ...] | None = None
    """Classes in the order of their ids; None: from the training data, or the task predicts numbers."""
    kind: Kind = "classes"
    metrics: tuple[Metric, ...] = (accuracy,)
    data: OpenSource | None = None
    """Data of the task; None: the files in the config."""
    valid_splits: Mapping[str, str] = field(default_factory=lambda: {"validation": ""})
    """Held-out splits and the prefixes of their metrics."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files of the answers in a submission to the leaderboard, by split."""
    file_labels: tuple[str, ...] | None = None
    """Names of the classes in those files; None: `classes`."""

    @property
    def is_pair(self) -> bool:
        """True if an example has two texts."""
        return len(self.texts) == 2

    def score(self, targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the metrics in percent and their mean, `score`, by which runs are compared."""
        metrics: dict[str, float] = {}
        for metric in self.metrics:
            metrics |= metric(targets, predictions)
        return metrics | {"score": sum(metrics.values()) / len(metrics)}


_ENTAILMENT = ("entailment", "neutral", "contradiction")
_TWO_WAY = ("entailment", "not_entailment")
_SENTENCE = (("sentence",),)
_SENTENCES = (("sentence1",), ("sentence2",))
_PREMISE = (("premise", "sentence1"), ("hypothesis", "sentence2"))
_STRINGS = (("sentence1", "#1 String"), ("sentence2", "#2 String"))
_QUESTIONS = (("question1",), ("question2",))
_GOLD: dict[str, Any] = {"label": ("gold_label", "label")}
_BINARY: dict[str, Any] = {"file_labels": ("0", "1")}
_F1: dict[str, Any] = {"metrics": (accuracy, f1_invalid_wrong), **_BINARY}


def _task(
    name: str, texts: tuple[Columns, ...], classes: tuple[str, ...] | None, files: str | Mapping[str, str], **more: Any
) -> TextTask:
    files = {"test": files} if isinstance(files, str) else files
    return TextTask(name=name, texts=texts, classes=classes, data=glue_data(name), files=files, **more)


TASKS: Mapping[str, TextTask] = {
    task.name: task
    for task in (
        _task("cola", _SENTENCE, ("unacceptable", "acceptable"), "CoLA.tsv", metrics=(matthews,), **_BINARY),
        _task("mrpc", _STRINGS, ("not_equivalent", "equivalent"), "MRPC.tsv", **_F1),
        _task("qqp", _QUESTIONS, ("not_duplicate", "duplicate"), "QQP.tsv", **_F1),
        _task("sst2", _SENTENCE, ("negative", "positive"), "SST-2.tsv", **_BINARY),
        _task("stsb", _SENTENCES, None, "STS-B.tsv", kind="numbers", metrics=(pearson, spearman)),
        _task(
            "mnli",
            _PREMISE,
            _ENTAILMENT,
            {"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
            valid_splits={"validation_matched": "", "validation_mismatched": "mismatched_"},
            **_GOLD,
        ),
        _task("qnli", (("question",), ("sentence",)), _TWO_WAY, "QNLI.tsv"),
        _task("rte", _SENTENCES, _TWO_WAY, "RTE.tsv"),
        _task("wnli", _SENTENCES, ("not_entailment", "entailment"), "WNLI.tsv", **_BINARY),
        _task("ax", _PREMISE, _ENTAILMENT, "AX.tsv", valid_splits={}, **_GOLD),
    )
}
"""The tasks by name: those of the original's sweep in its order, then WNLI, and the diagnostic set AX, which a model of
MNLI answers."""


def named_task(name: str) -> TextTask:
    """Return the GLUE task `name`. Raises ConfigError, which lists the valid names."""
    if name not in TASKS:
        raise ConfigError(
            f"data.task={name} is not a task of GLUE\n  tasks: {', '.join(TASKS)}; for your own table leave it "
            "out and set data.train=FILE data.texts=[COLUMN] data.label=COLUMN"
        )
    return TASKS[name]
