"""The open parts of tasks, which the run supplies: a vocabulary, folders of data, steps.

A task for general use cannot contain the tokenizer of a run or the folders of a machine. It has a `RunVocabulary`, an
`OpenSource` or `RunSteps` in their place; `Task.supplied(Supply(...))` returns the same task with these parts filled
in.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from pretrainkit.errors import ConfigError
from pretrainkit.tasks.sources import Example, HeldOutSplit, TaskSource
from pretrainkit.tasks.steps import Regroup, Step
from pretrainkit.tasks.vocabulary import Vocabulary

ALL = "all"
"""Name of a folder that contains a folder for each benchmark."""


class HeldOut(NamedTuple):
    """A split to be cut off."""

    name: str
    of: str
    """Split that it is cut off from."""
    share: float


@dataclass(frozen=True)
class Supply:
    """Settings of a run, or a command, for the open parts of its tasks."""

    vocabulary: Vocabulary | None = None
    """Replacement of `RunVocabulary`; None: tasks that need a vocabulary are refused."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """Folders by the name of a benchmark (`glue`) or of one of its data sets (`glue/cola`); `all`: a folder that
    contains a folder for each benchmark."""
    steps: Callable[[], Sequence[Step]] | None = None
    """Returns the replacement of `RunSteps`, if there are any; None: tasks that need steps are refused."""
    left_out: frozenset[str] = frozenset()
    """Tasks and mixtures to leave out of mixtures."""
    held_out: "HeldOut | None" = None
    """Split to cut off from the training split of tasks without it; None: tasks are not changed."""

    def source_of(self, source: TaskSource) -> TaskSource:
        """Return a task's source with data and the held-out split."""
        source = source.supplied(self) if isinstance(source, OpenSource) else source
        cut = self.held_out
        if cut is None or cut.of not in source.splits or cut.name in source.splits:
            return source
        return HeldOutSplit(source, cut.name, of=cut.of, share=cut.share)

    def vocabulary_of(self, task_name: str, vocabulary: Vocabulary) -> Vocabulary:
        """Return `vocabulary`, or that of the run. Raises ConfigError if the run has none."""
        if not isinstance(vocabulary, RunVocabulary):
            return vocabulary
        if self.vocabulary is None:
            raise ConfigError(
                f"task {task_name!r} leaves its vocabulary to the run, but none is configured\n"
                "  pass a tokenizer folder, or bytes: data.tokenizer=DIR in a config, --tokenizer DIR of pretrainkit "
                "tasks"
            )
        return self.vocabulary

    def steps_of(self, task_name: str, own: Sequence[Step]) -> tuple[Step, ...]:
        """Return the task's steps with those of the run. Raises ConfigError if the run has none."""
        steps: list[Step] = []
        for step in own:
            if not isinstance(step, RunSteps):
                steps.append(step)
            elif self.steps is None:
                raise ConfigError(f"task {task_name!r} leaves steps to the run, but none are configured\n  {step.fix}")
            else:
                steps += self.steps()
        return tuple(steps)


class RunVocabulary(Vocabulary):
    """Placeholder for the vocabulary of the run. All instances are equal; their ids are unknown."""

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
    """A named source whose folder is supplied by the run."""

    names: tuple[str, ...]
    """Keys of `Supply.folders` that may contain its folder."""

    @abstractmethod
    def supplied(self, supply: Supply) -> TaskSource:
        """Return the source with its data. Raises DataError if the data is missing."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ConfigError(
            "a task leaves open where its data is stored and is used without data\n"
            "  in Python: task.supplied(Supply(folders={NAME: FOLDER}))"
        )

    file_sizes = example = fingerprint = _refuse


@dataclass(frozen=True)
class RunSteps(Regroup):
    """Placeholder for steps of the run, after the cache marker."""

    fix: str = "configure the settings that they depend on"
    """Advice in the error message if the run has no steps."""

    def regroup(self, examples: Sequence[Example], **_: object) -> Sequence[Example]:
        raise ConfigError(f"a task leaves steps to the run and is used without any\n  {self.fix}")
