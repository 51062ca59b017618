"""The kinds of steps of a task, their calls, and a task bound to a split, lengths and a seed: an indexable collection
of examples without state.

A step that is a plain callable makes one example from one. It takes the example and, if it has parameters of these
names, `rng` (numpy.random.Generator, a function of seed, task, epoch, example and step), `lengths` (tokens per feature,
or None) and `features` (the task's output features).

`BoundTask.example(index, epoch)` is a pure function. Therefore any number of workers, ranks or batches gets the same
examples, and resuming needs only the position. The steps before the cache marker are applied while reading, or were
applied when the cache was written; those after it are applied again in every epoch.

Dimensions: N examples of the source, M examples after the steps before the cache marker.
"""

import functools
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pretrainkit import rng as keys
from pretrainkit.errors import ConfigError, DataError, PretrainKitError
from pretrainkit.tasks.sources import TaskSource
from pretrainkit.tasks.vocabulary import Feature

Example: TypeAlias = dict[str, Any]
Lengths: TypeAlias = Mapping[str, int]

_OFFERED = frozenset({"rng", "lengths", "features"})
_KEPT_EXAMPLES = 10_000
"""Splits with fewer examples are kept in memory, in their state before the cache marker."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Filter:
    """Step that keeps the examples for which `keep` is true. It must be before the cache marker."""

    keep: Callable[..., bool]


@dataclass(frozen=True)
class FlatMap:
    """Step that makes any number of examples from one. It must be before the cache marker."""

    function: Callable[..., Iterable[Mapping[str, Any]]]


@dataclass(frozen=True)
class CacheMarker:
    """Results of earlier steps can be stored (`pretrainkit tasks cache`); later steps are applied again in every
    epoch."""

    required: bool = False
    """Refuse to run without a cache."""


class Regroup(ABC):
    """Step that makes new examples from all examples, such as segments of concatenated documents. It must be after the
    cache marker, without random steps between the marker and this step."""

    @abstractmethod
    def regroup(
        self, examples: Sequence[Example], *, lengths: Lengths | None, features: Mapping[str, Feature]
    ) -> Sequence[Example]:
        """Return the new examples, with random access and without state. Input and result are picklable."""


Step: TypeAlias = Callable[..., Mapping[str, Any]] | Filter | FlatMap | CacheMarker | Regroup


def callable_of(step: Step) -> Callable[..., Any] | None:
    """Return the function that is called for each example; None if the step has none."""
    match step:
        case Filter():
            return step.keep
        case FlatMap():
            return step.function
        case CacheMarker() | Regroup():
            return None
    return step


def requested_arguments(step: Step) -> frozenset[str]:
    """Return which of `rng`, `lengths`, `features` a step takes."""
    function = callable_of(step)
    if function is None:
        return frozenset()
    bound = function.keywords if isinstance(function, functools.partial) else {}
    return _OFFERED & inspect.signature(function).parameters.keys() - bound.keys()


def name_of(step: Step) -> str:
    """Return the name of a step's function, or of its class."""
    function = callable_of(step)
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(step if function is None else function).__name__)


def random_generator(key: int, epoch: int, index: int, step: int) -> np.random.Generator:
    """Return the generator of one step for one example; no draw depends on other examples."""
    return keys.generator(keys.fold_one(keys.fold_one(keys.fold_one(key, epoch), index), step))


class Steps:
    """Steps of a task that are applied one after another to single examples."""

    def __init__(
        self,
        task_name: str,
        steps: Sequence[Step],
        *,
        first: int,
        seed: int,
        lengths: Lengths | None,
        features: Mapping[str, Feature],
    ) -> None:
        """`first`: index in the task of the first of `steps`. A step's random numbers depend on its index there."""
        self.task_name, self.steps, self._first = task_name, tuple(steps), first
        self._key = keys.stream_key(seed, "task", task_name)
        offered = {"lengths": lengths, "features": features}
        self._calls = []
        for step in self.steps:
            requested = requested_arguments(step)
            more = {name: value for name, value in offered.items() if name in requested}
            self._calls.append((step, callable_of(step), "rng" in requested, more))

    def apply(self, example: Mapping[str, Any], epoch: int, index: int) -> list[Example]:
        """Return the examples that follow from example `index`: one, or any number if steps filter or multiply."""
        examples = [dict(example)]
        for number, (step, function, is_random, more) in enumerate(self._calls):
            assert function is not None
            arguments: dict[str, Any] = dict(more)
            if is_random:
                arguments["rng"] = random_generator(self._key, epoch, index, self._first + number)
            try:
                if isinstance(step, Filter):
                    examples = [part for part in examples if function(part, **arguments)]
                elif isinstance(step, FlatMap):
                    examples = [dict(_checked(new)) for part in examples for new in function(part, **arguments)]
                else:
                    examples = [dict(_checked(function(part, **arguments))) for part in examples]
            except Exception as error:
                raise self._explained(error, step, index) from error
            if not examples:
                break
        return examples

    def _explained(self, error: Exception, step: Step, index: int) -> Exception:
        if isinstance(error, PretrainKitError):
            return error
        reason = f"no key {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        return DataError(
            f"task {self.task_name!r}: its step {name_of(step)!r} failed for example {index}: {reason}\n"
            "  correct the step or the data; --debug shows where it failed"
        )


def _checked(result: object) -> Mapping[str, Any]:
    if not isinstance(result, Mapping):
        raise TypeError(f"it returned {result!r:.80}, which is not a mapping of keys to values")
    return result


class Examples(Sequence[Example]):
    """Examples by index, without state."""

    @abstractmethod
    def example(self, index: int) -> Example:
        """Return example `index`, from 0; the caller may change the dict, but not its arrays."""

    def __getitem__(self, index: int | slice) -> Any:  # an example, or a list of them
        if isinstance(index, slice):
            return [self.example(number) for number in range(*index.indices(len(self)))]
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"example {index} of {size}")
        return self.example(index % size)

    def __iter__(self) -> Iterator[Example]:
        return (self.example(index) for index in range(len(self)))


class SourceExamples(Examples):
    """The examples of a source after the steps before the cache marker, computed on access.

    If steps filter or multiply, one pass counts the examples that follow from every example of the source.
    """

    def __init__(self, source: TaskSource, split: str, steps: Steps) -> None:
        self._source, self._split, self._steps = source, split, steps
        self._is_one_to_one = not any(isinstance(step, (Filter, FlatMap)) for step in steps.steps)
        self._num_raw = source.num_examples(split)
        self._kept: dict[int, list[Example]] | None = {} if self._num_raw < _KEPT_EXAMPLES else None

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """(N,) cumulative numbers of examples."""
        if self._kept is None:
            _logger.info("task %s: counting the examples of %s", self._steps.task_name, self._split)
        counts = (len(self.of_source(index)) for index in range(self._num_raw))
        return np.cumsum(np.fromiter(counts, np.int64, self._num_raw))

    def __len__(self) -> int:
        if self._is_one_to_one or self._num_raw == 0:
            return self._num_raw
        return int(self.ends[-1])

    def of_source(self, index: int) -> list[Example]:
        """Return the examples that follow from example `index` of the source."""
        if self._kept is not None and index in self._kept:
            return self._kept[index]
        examples = self._steps.apply(self._source.example(self._split, index), 0, index)
        if self._kept is not None:
            self._kept[index] = examples
        return examples

    def example(self, index: int) -> Example:
        if self._is_one_to_one:
            return dict(self.of_source(index)[0])
        row = int(np.searchsorted(self.ends, index, side="right"))
        own = index - (int(self.ends[row - 1]) if row else 0)
        return dict(self.of_source(row)[own])

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_kept": None if self._kept is None else {}}


class StepsOver(Examples):
    """Examples of epoch 0 after further steps, each of which maps one example to one. `at` returns those of any
    epoch."""

    def __init__(self, base: Sequence[Example], steps: Steps) -> None:
        self._base, self._steps = base, steps

    def __len__(self) -> int:
        return len(self._base)

    def example(self, index: int) -> Example:
        return self.at(index, 0)

    def at(self, index: int, epoch: int) -> Example:
        """Return example `index` of an epoch."""
        return self._steps.apply(self._base[index], epoch, index)[0]


class BoundTask(Examples):
    """A task bound to its data by `Task.bind`."""

    def __init__(
        self,
        task: Any,
        split: str,
        stored: Sequence[Example],
        lengths: Lengths | None,
        seed: int,
        *,
        is_cached: bool,
    ) -> None:
        """`stored`: examples of the `Task` at its cache marker, from a cache if `is_cached`; see `Task.bind` for the
        other arguments."""
        self.name, self.split, self.features, self.is_cached = task.name, split, dict(task.features), is_cached
        self.lengths = None if lengths is None else dict(lengths)
        self.stored = stored
        """Examples at the cache marker."""
        _, steps, _ = split_steps(task.name, task.preprocessors)
        num_steps_before = len(task.preprocessors) - len(steps)
        base: Sequence[Example] = stored
        first = 0
        for number, step in enumerate(steps):
            if isinstance(step, Regroup):
                before = self._steps(steps[first:number], num_steps_before + first, seed)
                random = [name_of(earlier) for earlier in before.steps if "rng" in requested_arguments(earlier)]
                if random:
                    raise ConfigError(
                        f"task {self.name!r}: its step {name_of(step)!r} cannot follow the random step {random[0]!r}"
                    )
                view = StepsOver(base, before) if before.steps else base
                base = step.regroup(view, lengths=self.lengths, features=self.features)
                first = number + 1
        self._last = StepsOver(base, self._steps(steps[first:], num_steps_before + first, seed))

    def _steps(self, steps: Sequence[Step], first: int, seed: int) -> Steps:
        return Steps(self.name, steps, first=first, seed=seed, lengths=self.lengths, features=self.features)

    def __len__(self) -> int:
        return len(self._last)

    def example(self, index: int, epoch: int = 0) -> Example:
        """Return example `index` of an epoch: output features are checked, converted to arrays and trimmed. Raises
        DataError if a step failed, a required feature is missing, or a feature has another rank or kind of values."""
        example = self._last.at(index, epoch)
        for name, feature in self.features.items():
            if name in example:
                value = self._checked(feature, name, example[name], index)
                limit = None if self.lengths is None else self.lengths.get(name)
                example[name] = value if limit is None or feature.rank == 0 else value[:limit]
            elif feature.required:
                keys = ", ".join(example) or "none"
                raise DataError(
                    f"task {self.name!r}: example {index} of {self.split} lacks the feature {name!r}\n"
                    f"  after all steps its keys are: {keys}; rename one with rekey, or set required=False"
                )
        return example

    def _checked(self, feature: Feature, name: str, value: Any, index: int) -> NDArray:
        array = np.asarray(value)
        dtype = feature.numpy_dtype
        if array.size == 0:
            array = array.astype(dtype)
        if array.ndim != feature.rank or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise DataError(
                f"task {self.name!r}: feature {name!r} of example {index} of {self.split} is {array.dtype} of rank "
                f"{array.ndim}, but it is declared as {feature.dtype} of rank {feature.rank}\n"
                "  tokenize it, or correct the declaration"
            )
        return array.astype(dtype, copy=False)


def split_steps(task_name: str, steps: Sequence[Step]) -> tuple[tuple[Step, ...], tuple[Step, ...], CacheMarker | None]:
    """Return (steps before the cache marker, steps after it, the marker).

    Without a marker, the steps up to the last one that filters or multiplies come first. Raises ConfigError with all
    conflicts between steps.
    """
    problems = []
    markers = [number for number, step in enumerate(steps) if isinstance(step, CacheMarker)]
    if len(markers) > 1:
        problems.append(f"task {task_name!r} has {len(markers)} cache markers; only one is allowed")
    many = [number for number, step in enumerate(steps) if isinstance(step, (Filter, FlatMap))]
    cut = markers[0] if markers else (many[-1] + 1 if many else 0)
    before, after = tuple(steps[:cut]), tuple(steps[cut + bool(markers) :])
    for step in before:
        if "lengths" in requested_arguments(step):
            problems.append(
                f"task {task_name!r}: its step {name_of(step)!r} depends on lengths, so it must be after the cache "
                "marker and after steps that filter or multiply; move it there"
            )
        if isinstance(step, Regroup):
            problems.append(f"task {task_name!r}: {name_of(step)!r} must be after the cache marker")
    for number in many:
        if number >= cut:
            problems.append(
                f"task {task_name!r}: its step {name_of(steps[number])!r} filters or multiplies, so it must be "
                "before the cache marker"
            )
    if problems:
        raise ConfigError(problems)
    return before, after, steps[markers[0]] if markers else None  # type: ignore[return-value]
