"""Variants of tasks with sentinels in the format of span corruption: `... <extra_id_0>` to `<extra_id_0> ...`.

They help models that were pretrained by span corruption with small tasks. Source: the released `seqio`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.tasks.preprocessors import append_eos, append_eos_after_trim, tokenize_and_append_eos
from pretrainkit.tasks.steps import Example, Lengths
from pretrainkit.tasks.task import REGISTRY, Task, TaskRegistry

if TYPE_CHECKING:
    from pretrainkit.tasks.task import Feature

_PARTS_BEHIND = ("_train", "_dev", "_test", "_eval", ".")
"""Parts of names before which the number of sentinels is inserted: the first of these that a name contains."""
_ENDS = (append_eos, append_eos_after_trim)


def add_task_with_sentinels(task: str | Task, num_sentinels: int = 1, registry: TaskRegistry = REGISTRY) -> Task:
    """Register the sentinel variant of a task, and return it.

    Its first sentinels follow the inputs, which are shortened to fit, and begin the targets; they are removed before
    evaluation. `_1_sentinel` is inserted into the name before `_train`, `_dev`, `_test` or `_eval`, or else at its end.
    Raises ConfigError if the task does not tokenize before it appends EOS, or the name exists already.
    """
    return registry.add(with_sentinels(registry.get_task(task) if isinstance(task, str) else task, num_sentinels))


def with_sentinels(task: Task, num_sentinels: int = 1) -> Task:
    """Return the sentinel variant of a task; see `add_task_with_sentinels`."""
    if num_sentinels < 1:
        raise ConfigError(f"num_sentinels is {num_sentinels}; it must be at least 1")
    steps = list(task.preprocessors)
    if tokenize_and_append_eos in steps:
        raise ConfigError(
            f"task {task.name!r} tokenizes and appends EOS in one step\n  use tokenize() and then append_eos_after_trim"
        )
    place = next((number for number, step in enumerate(steps) if step in _ENDS), len(steps))
    steps.insert(place, AddSentinels(num_sentinels))
    postprocess = WithoutSentinels(num_sentinels, task.postprocess)
    return task.replace(name=twin_name(task.name, num_sentinels), preprocessors=steps, postprocess=postprocess)


def twin_name(name: str, num_sentinels: int = 1) -> str:
    """Return the name of a task's sentinel variant."""
    place = next((place for part in _PARTS_BEHIND if (place := name.find(part)) >= 0), len(name))
    return f"{name[:place]}_{num_sentinels}_sentinel{name[place:]}"


@dataclass(frozen=True)
class AddSentinels:
    """Append sentinels to the inputs and prepend them to the targets, within their lengths."""

    num: int

    def __call__(
        self, example: Mapping[str, Any], features: "Mapping[str, Feature]", lengths: Lengths | None
    ) -> Example:
        extended = dict(example)
        for name in ("inputs", "targets"):
            if name not in extended:
                continue
            feature = features[name]
            sentinels = feature.vocabulary.sentinel_ids[: self.num]
            if len(sentinels) < self.num:
                raise DataError(
                    f"the vocabulary has {len(sentinels)} sentinels, but {self.num} are needed for {name}\n"
                    f"  use a tokenizer with more, or data.denoising.num_sentinels={max(100, self.num)}; "
                    f"with pretrainkit tasks: --sentinels {max(100, self.num)}"
                )
            marks, ids = np.array(sentinels, feature.numpy_dtype), np.asarray(extended[name], feature.numpy_dtype)
            if name == "targets":
                extended[name] = np.concatenate([marks, ids])
                continue
            if lengths is not None and name in lengths:
                ids = ids[: max(0, lengths[name] - self.num - feature.add_eos)]
            extended[name] = np.concatenate([ids, marks])
        return extended


@dataclass(frozen=True)
class WithoutSentinels:
    """Remove the sentinels at the beginning of a text before it is evaluated."""

    num: int
    postprocess: Any

    def __call__(self, decoded: str, *, example: Any = None, is_target: bool = False) -> Any:
        text = decoded
        for number in range(self.num):
            mark = f"<extra_id_{number}>"
            if text.lstrip().startswith(mark):
                text = text.lstrip().removeprefix(mark).strip()
        return text if self.postprocess is None else self.postprocess(text, example=example, is_target=is_target)
