"""What tasks leave open and the run that uses them supplies: a vocabulary, where data lie, steps.

A task that everybody may use cannot know the tokenizer of a run or the folders of a machine. It names a
`RunVocabulary`, an `OpenSource` or `RunSteps` in their place; `Task.supplied(Supply(...))` is the same task with what
was left open.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from pretrainkit.errors import ConfigError
from pretrainkit.tasks.sources import Example, TaskSource
from pretrainkit.tasks.steps import Regroup, Step
from pretrainkit.tasks.vocabulary import Vocabulary

ALL = "all"
"""Name of a folder with one for each benchmark."""


@dataclass(frozen=True)
class Supply:
    """What a run, or a command, gives the tasks that it uses."""

    vocabulary: Vocabulary | None = None
    """In place of `RunVocabulary`; None: tasks that need one are refused."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """Name of a benchmark (`glue`) or of a data set of it (`glue/cola`) to its folder; `all`: a folder with one for
    each benchmark."""
    steps: Callable[[], Sequence[Step]] | None = None
    """What to put in place of `RunSteps`, asked only where there are such; None: tasks that need some are refused."""
    left_out: frozenset[str] = frozenset()
    """Tasks and mixtures that mixtures do without."""

    def vocabulary_of(self, task_name: str, given: Vocabulary) -> Vocabulary:
        """`given`, or that of the run. Raises ConfigError where there is none."""
        if not isinstance(given, RunVocabulary):
            return given
        if self.vocabulary is None:
            raise ConfigError(
                f"task {task_name!r} leaves its vocabulary to the run, and none is given\n"
                "  name a tokenizer folder, or bytes: data.tokenizer=DIR in a config, --tokenizer DIR of pretrainkit "
                "tasks"
            )
        return self.vocabulary

    def steps_of(self, task_name: str, given: Sequence[Step]) -> tuple[Step, ...]:
        """`given` with the steps of the run. Raises ConfigError where there are none."""
        found: list[Step] = []
        for step in given:
            if not isinstance(step, RunSteps):
                found.append(step)
            elif self.steps is None:
                raise ConfigError(f"task {task_name!r} leaves steps to the run, and none are given\n  {step.mend}")
            else:
                found += self.steps()
        return tuple(found)


class RunVocabulary(Vocabulary):
    """Stands for the vocabulary of the run. All of these are equal; nothing is known about their ids."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ConfigError(
            "a task leaves its vocabulary to the run and is used without one\n"
            "  in Python: task.supplied(Supply(vocabulary=open_vocabulary(FOLDER)))"
        )

    size = pad_id = eos_id = unk_id = sentinel_ids = fingerprint = property(_refuse)
    encode = _decode = _refuse

    def describe(self) -> str:
        return "the vocabulary of the run"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunVocabulary)

    def __hash__(self) -> int:
        return hash(RunVocabulary)


class OpenSource(TaskSource):
    """A source that is known by name; where it lies is supplied."""

    names: tuple[str, ...]
    """Those of `Supply.folders` that say where it is."""

    @abstractmethod
    def supplied(self, supply: Supply) -> TaskSource:
        """The source itself. Raises DataError where it is not there."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ConfigError(
            "a task leaves open where its data lie and is used as it is\n"
            "  in Python: task.supplied(Supply(folders={NAME: FOLDER}))"
        )

    file_sizes = example = fingerprint = _refuse


@dataclass(frozen=True)
class RunSteps(Regroup):
    """Stands for steps of the run, behind the cache marker."""

    mend: str = "give the settings that they are made of"
    """What a user who gave none is told."""

    def regroup(self, examples: Sequence[Example], **_: object) -> Sequence[Example]:
        raise ConfigError(f"a task leaves steps to the run and is used without any\n  {self.mend}")
