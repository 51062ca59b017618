"""What the named tasks are made of: their features, and the steps around their own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pretrainkit.tasks.preprocessors import append_eos_after_trim, tokenize
from pretrainkit.tasks.sources import TaskSource
from pretrainkit.tasks.steps import CacheMarker, Step
from pretrainkit.tasks.supply import RunVocabulary
from pretrainkit.tasks.task import Feature, Task

FEATURES = {"inputs": Feature(RunVocabulary(), required=False), "targets": Feature(RunVocabulary())}
"""Of all of them, but for those of language models alone."""
Metrics = Sequence[Callable[..., Mapping[str, Any]]]
Postprocess = Callable[..., Any]


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
