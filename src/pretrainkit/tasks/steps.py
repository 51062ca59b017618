"""The kinds of steps of a task, and how they are called.

A step that is a plain callable makes one example from one: it takes the example and, where it has parameters of these
names, `rng` (numpy.random.Generator, a function of seed, task, epoch, example and step), `lengths` (tokens per feature,
or None) and `features` (the task's output features).
"""

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pretrainkit import rng as keys
from pretrainkit.errors import DataError, PretrainKitError
from pretrainkit.tasks.vocabulary import Feature

Example: TypeAlias = dict[str, Any]
Lengths: TypeAlias = Mapping[str, int]

_OFFERED = frozenset({"rng", "lengths", "features"})


@dataclass(frozen=True)
class Filter:
    """Keeps the examples for which `keep` is true. Before the cache marker only."""

    keep: Callable[..., bool]


@dataclass(frozen=True)
class FlatMap:
    """Makes any number of examples from one. Before the cache marker only."""

    function: Callable[..., Iterable[Mapping[str, Any]]]


@dataclass(frozen=True)
class CacheMarker:
    """What comes before can be kept on disk (`pretrainkit tasks cache`), what comes after is done anew every epoch."""

    required: bool = False
    """Refuse to run without a cache."""


class Regroup(ABC):
    """Makes other examples from all of them, by index: segments of the laid out tokens of documents, for instance.
    After the cache marker only, and no step between the marker and it may be random."""

    @abstractmethod
    def regroup(
        self, examples: Sequence[Example], *, lengths: Lengths | None, features: Mapping[str, Feature]
    ) -> Sequence[Example]:
        """The new examples, with random access and without state. Both are picklable."""


Step: TypeAlias = Callable[..., Mapping[str, Any]] | Filter | FlatMap | CacheMarker | Regroup


def callable_of(step: Step) -> Callable[..., Any] | None:
    """What is called for each example, where there is such."""
    match step:
        case Filter():
            return step.keep
        case FlatMap():
            return step.function
        case CacheMarker() | Regroup():
            return None
    return step


def wanted(step: Step) -> frozenset[str]:
    """Which of `rng`, `lengths`, `features` a step asks for."""
    function = callable_of(step)
    if function is None:
        return frozenset()
    given = function.keywords if isinstance(function, functools.partial) else {}
    return _OFFERED & inspect.signature(function).parameters.keys() - given.keys()


def name_of(step: Step) -> str:
    function = callable_of(step)
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(step if function is None else function).__name__)


def random_generator(key: int, epoch: int, index: int, step: int) -> np.random.Generator:
    """The generator of one step for one example; no draw depends on any other example."""
    return keys.generator(keys.fold_one(keys.fold_one(keys.fold_one(key, epoch), index), step))


class Steps:
    """Steps of a task that are done one after another for single examples."""

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
        """`first`: number of the first of `steps` within the task, which keys its randomness."""
        self.task_name, self.steps, self._first = task_name, tuple(steps), first
        self._key = keys.stream_key(seed, "task", task_name)
        offered = {"lengths": lengths, "features": features}
        self._calls = []
        for step in self.steps:
            asked = wanted(step)
            more = {name: value for name, value in offered.items() if name in asked}
            self._calls.append((step, callable_of(step), "rng" in asked, more))

    def one(self, example: Mapping[str, Any], epoch: int, index: int) -> Example:
        """The example after steps that are all one to one."""
        for number, (step, function, is_random, more) in enumerate(self._calls):
            assert function is not None
            try:
                if is_random:
                    rng = random_generator(self._key, epoch, index, self._first + number)
                    made = function(example, rng=rng, **more)
                else:
                    made = function(example, **more)
                example = _checked(made)
            except Exception as error:
                raise self._explained(error, step, index) from error
        return dict(example)

    def several(self, example: Mapping[str, Any], index: int) -> list[Example]:
        """What becomes of one example of the source: none, one or more."""
        found = [dict(example)]
        for number, (step, function, is_random, more) in enumerate(self._calls):
            assert function is not None
            arguments: dict[str, Any] = dict(more)
            if is_random:
                arguments["rng"] = random_generator(self._key, 0, index, self._first + number)
            try:
                if isinstance(step, Filter):
                    found = [one for one in found if function(one, **arguments)]
                elif isinstance(step, FlatMap):
                    found = [dict(_checked(new)) for one in found for new in function(one, **arguments)]
                else:
                    found = [dict(_checked(function(one, **arguments))) for one in found]
            except Exception as error:
                raise self._explained(error, step, index) from error
            if not found:
                break
        return found

    def _explained(self, error: Exception, step: Step, index: int) -> Exception:
        if isinstance(error, PretrainKitError):
            return error
        reason = f"no key {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        return DataError(
            f"task {self.task_name!r}: its step {name_of(step)!r} failed for example {index}: {reason}\n"
            "  mend the step or the data; --debug shows where it happened"
        )


def _checked(made: object) -> Mapping[str, Any]:
    if not isinstance(made, Mapping):
        raise TypeError(f"it gave {made!r:.80}, which is no mapping of keys to values")
    return made
