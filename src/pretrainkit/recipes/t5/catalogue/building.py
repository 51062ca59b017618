"""What the named tasks are made of: their features, the steps around their own, and `postprocess`, from decoded
texts to what metrics compare."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrainkit.eval.metrics import accuracy, same_referent
from pretrainkit.recipes.t5.catalogue.labelled import labelled
from pretrainkit.tasks.preprocessors import append_eos_after_trim, tokenize
from pretrainkit.tasks.sources import TaskSource
from pretrainkit.tasks.steps import CacheMarker, Step
from pretrainkit.tasks.supply import RunVocabulary
from pretrainkit.tasks.task import Feature, Task

FEATURES = {"inputs": Feature(RunVocabulary(), required=False), "targets": Feature(RunVocabulary())}
"""Of all of them, but for those of language models alone."""
Metrics = Sequence[Callable[..., Mapping[str, Any]]]
Postprocess = Callable[..., Any]
Row = Mapping[str, Any]
NO_CLASS = -1
"""What a text is that names no class."""


@dataclass(frozen=True)
class ClassNumber:
    """Text to the number of the class of that name."""

    classes: Sequence[str]

    def __call__(self, decoded: str, *, example: Row | None = None, is_target: bool = False) -> int:
        return self.classes.index(decoded) if decoded in self.classes else NO_CLASS


def number(decoded: str, *, example: Row | None = None, is_target: bool = False) -> float:
    """Text to the number it spells; -1 where it spells none, or one that no score is, such as nan."""
    try:
        value = float(decoded)
    except ValueError:
        return -1.0
    return value if math.isfinite(value) else -1.0


def judged_answer(decoded: str, *, example: Row, is_target: bool = False) -> dict[str, Any]:
    """MultiRC: whether an answer is right; of targets also which question it belongs to."""
    found: dict[str, Any] = {"value": ClassNumber(("False", "True"))(decoded)}
    return found | ({"group": (example["idx/paragraph"], example["idx/question"])} if is_target else {})


def entity(decoded: str, *, example: Row, is_target: bool = False) -> dict[str, Any]:
    """ReCoRD: an answer; of targets all that are right, and which query they belong to."""
    if not is_target:
        return {"value": decoded}
    return {"value": list(example["answers"]), "group": (example["idx/passage"], example["idx/query"])}


def all_answers(decoded: str, *, example: Row, is_target: bool = False) -> str | list[str]:
    """An answer, or all that are right."""
    return list(example["answers"]) if is_target else decoded


def span(decoded: str, *, example: Row, is_target: bool = False) -> str | dict[str, Any]:
    """A place in the text, or the text and all answers that are right."""
    return {"answers": list(example["answers"]), "context": example["context"]} if is_target else decoded


def referent(decoded: str, *, example: Row, is_target: bool = False) -> int:
    """Whether an answer means the noun of the example, or whether it should."""
    return int(example["label"]) if is_target else same_referent(decoded, example["targets_pretokenized"])


def class_task(
    name: str,
    source: TaskSource,
    benchmark: str,
    fields: Sequence[str],
    classes: Sequence[str],
    metrics: Metrics = (accuracy,),
    columns: Mapping[str, str] | None = None,
) -> Task:
    """A task of rows of `fields` with one of `classes`; see `labelled`."""
    step = labelled(benchmark, fields, classes, columns)
    return text_task(name, source, step, postprocess=ClassNumber(tuple(classes)), metrics=metrics)


def text_task(
    name: str,
    source: TaskSource,
    *steps: Step,
    postprocess: Postprocess | None = None,
    metrics: Metrics = (),
    after: Sequence[Step] = (),
) -> Task:
    """A task whose `steps` make texts, `inputs` and `targets`, of rows; they are tokenized, kept, and ended. `after`:
    steps behind the cache marker, before EOS is appended."""
    return Task(
        name,
        source,
        FEATURES,
        (*steps, tokenize(), CacheMarker(), *after, append_eos_after_trim),
        postprocess=postprocess,
        metrics=metrics,
    )
