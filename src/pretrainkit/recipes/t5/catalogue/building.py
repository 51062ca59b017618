"""What the named tasks are made of: their features, and the steps around their own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pretrainkit.eval.metrics import accuracy
from pretrainkit.recipes.t5.catalogue.answers import ClassNumber
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
