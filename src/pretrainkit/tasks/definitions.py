"""What a task and a mixture are; `task.py` finds them by name.

The contract follows SeqIO (https://arxiv.org/abs/2203.17189); what differs: examples are found by index and shuffled as
a whole, and vocabularies are compared by content.
"""

import dataclasses
import inspect
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.files.manifest import fingerprint as json_fingerprint
from pretrainkit.tasks.bound_task import BoundTask, SourceExamples, split_steps
from pretrainkit.tasks.cache import find_cache
from pretrainkit.tasks.identity import identity
from pretrainkit.tasks.rates import GroupRate, Rate, Sizes
from pretrainkit.tasks.sources import TaskSource
from pretrainkit.tasks.steps import CacheMarker, Example, Lengths, Step, Steps, name_of, wanted
from pretrainkit.tasks.supply import Supply, leaves_open
from pretrainkit.tasks.vocabulary import Feature

_NAME = re.compile(r"[\w.:#]+")
_CACHE_FORMAT = 1
_logger = logging.getLogger(__name__)

MetricKind = Literal["predictions", "scores", "predictions and values"]
_METRIC_KINDS: dict[tuple[str, ...], MetricKind] = {
    ("targets", "predictions"): "predictions",
    ("targets", "scores"): "scores",
    ("targets", "predictions", "aux_values"): "predictions and values",
}


@dataclass(frozen=True)
class Task:
    """A source with all that makes examples of it."""

    name: str
    """Word characters, `.`, `:` and `#`; a colon makes a folder in the cache."""
    source: TaskSource
    features: Mapping[str, Feature]
    """Output features, kept sorted by name."""
    preprocessors: Sequence[Step] = ()
    """Done one after another; see `steps.py`."""
    postprocess: Callable[..., Any] | None = None
    """`postprocess(decoded, example=..., is_target=...)`, of predictions and of targets. None: as decoded."""
    metrics: Sequence[Callable[..., Mapping[str, Any]]] = ()
    """Each of `(targets, predictions)`, `(targets, scores)` or `(targets, predictions, aux_values)`."""

    def __post_init__(self) -> None:
        problems = _name_problems(self.name)
        if not self.features:
            problems.append(f"task {self.name!r} has no output feature; name at least one")
        for metric in self.metrics:
            try:
                metric_kind(metric)
            except ConfigError as error:
                problems += [f"task {self.name!r}: {problem}" for problem in error.problems]
        if problems:
            raise ConfigError(problems)
        object.__setattr__(self, "features", dict(sorted(self.features.items())))
        object.__setattr__(self, "preprocessors", tuple(self.preprocessors))
        object.__setattr__(self, "metrics", tuple(self.metrics))
        for step in split_steps(self.name, self.preprocessors)[0]:
            if "rng" in wanted(step):
                told = "task %s: its step %s is random but comes before the cache marker: no epoch differs"
                _logger.warning(told, self.name, name_of(step))

    @property
    def splits(self) -> tuple[str, ...]:
        return self.source.splits

    @property
    def cache_marker(self) -> CacheMarker | None:
        """Where the task can be cached; None: it cannot."""
        return split_steps(self.name, self.preprocessors)[2]

    def replace(self, **changes: Any) -> "Task":
        return dataclasses.replace(self, **changes)

    def supplied(self, supply: Supply) -> "Task":
        """The task with what it leaves open, itself where that is nothing; see `supply.py`.

        Raises:
            ConfigError: It leaves open what is not supplied.
            DataError: Its data are not where they are said to be.
        """
        if not leaves_open(self.source, [feature.vocabulary for feature in self.features.values()], self.preprocessors):
            return self
        features = {
            name: dataclasses.replace(feature, vocabulary=supply.vocabulary_of(self.name, feature.vocabulary))
            for name, feature in self.features.items()
        }
        steps = supply.steps_of(self.name, self.preprocessors)
        return self.replace(source=supply.source_of(self.source), features=features, preprocessors=steps)

    def fingerprint(self, split: str) -> str:
        """Changes whenever the examples before the cache marker would: data, steps, or vocabularies. Raises DataError
        where the source cannot be read."""
        before = split_steps(self.name, self.preprocessors)[0]
        features = {
            name: [feature.vocabulary.fingerprint, feature.add_eos, feature.required, feature.dtype, feature.rank]
            for name, feature in self.features.items()
        }
        steps = [identity(step) for step in before]
        return json_fingerprint([_CACHE_FORMAT, self.source.fingerprint(split), steps, features])

    def bind(
        self,
        split: str,
        lengths: Lengths | None = None,
        *,
        seed: int = 0,
        caches: Sequence[str | Path] = (),
        use_cache: bool = True,
    ) -> BoundTask:
        """The examples of a split. Raises DataError where there is no such split, or the task needs a cache and there
        is none.

        Args:
            lengths: Tokens per feature, to which examples are trimmed; None: not at all.
            seed: Of the random steps.
            caches: Folders of `pretrainkit tasks cache`, searched in this order. A cache that is not there, or was made
                of other data or by other steps, is passed over with a note.
            use_cache: False: `caches` are not looked at.
        """
        before, after, marker = split_steps(self.name, self.preprocessors)
        cache = find_cache(self, split, caches) if marker is not None and use_cache else None
        if cache is None and marker is not None and marker.required:
            raise DataError(
                f"task {self.name!r} needs a cache of {split!r} and there is none that fits"
                f"{''.join(f' in {folder}' for folder in caches)}\n"
                f"  make one: pretrainkit tasks cache {self.name} --out DIR"
            )
        return BoundTask(
            name=self.name,
            split=split,
            stored=self.uncached(split, seed) if cache is None else cache.examples(split),
            steps=after,
            num_steps_before=len(before) + (marker is not None),
            features=self.features,
            lengths=lengths,
            seed=seed,
            is_cached=cache is not None,
        )

    def uncached(self, split: str, seed: int = 0) -> SourceExamples:
        """The examples of a split as they are at the cache marker, made from the source."""
        self.source.check_split(split)
        before = split_steps(self.name, self.preprocessors)[0]
        steps = Steps(self.name, before, first=0, seed=seed, lengths=None, features=self.features)
        return SourceExamples(self.source, split, steps)


@dataclass(frozen=True)
class Mixture:
    """Tasks and mixtures with rates. An example's task is drawn in proportion to its rate."""

    name: str
    """As of a task."""
    members: "Sequence[Member | tuple[Member, Rate | None]]"
    """Names, or tasks and mixtures, which stand for theirs; alone or with a rate: a number, or a function of the task
    and `Sizes`. Mixtures have numbers."""
    default_rate: Rate | GroupRate | None = None
    """Of members without a rate of their own; a `GroupRate` such as `UniMax` looks at all of them together."""
    rates_of: Literal["examples", "tokens"] = "examples"
    """What rates are shares of. tokens: of inputs and targets together, as some examples of each task have them."""

    def __post_init__(self) -> None:
        problems = _name_problems(self.name)
        wrong = [member for member in self.members if not _is_member(member)]
        if wrong:
            problems.append(
                f"mixture {self.name!r} has the member {wrong[0]!r}\n  give a name, or (name, rate) with a number or a "
                "function of the task and its sizes as rate"
            )
            raise ConfigError(problems)
        pairs = self.pairs
        if not pairs:
            problems.append(f"mixture {self.name!r} has no members")
        names = [name for name, _ in pairs]
        problems += [
            f"mixture {self.name!r} names {name!r} twice" for name in sorted({n for n in names if names.count(n) > 1})
        ]
        for name, rate in pairs:
            if rate is None and self.default_rate is None:
                problems.append(f"mixture {self.name!r} has no rate for {name!r} and no default_rate")
            if isinstance(rate, (int, float)) and not (rate >= 0 and math.isfinite(rate)):
                problems.append(f"mixture {self.name!r}: the rate of {name!r} is {rate}; it must be a number from 0 up")
        if self.rates_of == "tokens" and isinstance(self.default_rate, GroupRate):
            problems.append(
                f"mixture {self.name!r}: {type(self.default_rate).__name__} gives rates of examples, but rates_of is "
                "'tokens'; leave that out, or give numbers"
            )
        if problems:
            raise ConfigError(problems)
        object.__setattr__(self, "members", pairs)

    @property
    def pairs(self) -> "tuple[tuple[str, Rate | None], ...]":
        """Names of the members and the rates of their own."""
        found: list[tuple[str, Rate | None]] = []
        for given in self.members:
            member, rate = (given, None) if isinstance(given, (str, Task, Mixture)) else given
            found.append((member if isinstance(member, str) else member.name, rate))
        return tuple(found)


@dataclass(frozen=True)
class BoundMixture:
    """A mixture bound to its data: bound tasks with weights, all above 0."""

    name: str
    tasks: tuple[BoundTask, ...]
    weights: tuple[float, ...]
    """For `data.order.Order`, one per task; they need not add up to 1."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Examples of each task."""
        return tuple(map(len, self.tasks))

    def example(self, source: int, index: int, epoch: int = 0) -> Example:
        """Example `index` of task number `source`, of an epoch of that task."""
        return self.tasks[source].example(index, epoch)


Member: TypeAlias = str | Task | Mixture
"""Of a mixture."""


def check_alike(tasks: Sequence[Task]) -> None:
    """Raises ConfigError where tasks that are to be mixed differ in the vocabulary, dtype or rank of a feature."""
    first = tasks[0]
    problems = []
    for task in tasks[1:]:
        for name, feature in task.features.items():
            other = first.features[name]
            if (feature.dtype, feature.rank) != (other.dtype, other.rank):
                problems.append(
                    f"feature {name!r} is {other.dtype} of rank {other.rank} in {first.name!r}, but {feature.dtype} of "
                    f"rank {feature.rank} in {task.name!r}"
                )
            elif feature.vocabulary != other.vocabulary:
                problems.append(
                    f"feature {name!r} has different vocabularies\n"
                    f"  {first.name}: {other.vocabulary.describe()}\n  {task.name}: {feature.vocabulary.describe()}"
                )
    if problems:
        raise ConfigError(problems)


def own_rates(mixture: Mixture, members: Sequence[tuple[Task | Mixture, Rate | None]], sizes: Sizes) -> list[float]:
    """The rate of each member within the mixture, before anything is said about tasks within mixtures. Raises
    ConfigError where a mixture among the members has a rate that is no number, a rate is below 0, or a function
    failed."""
    default = mixture.default_rate
    found: list[float] = []
    in_group: list[int] = []
    for number, (member, given) in enumerate(members):
        rate = default if given is None else given
        if isinstance(rate, (int, float)):
            found.append(float(rate))
        elif isinstance(member, Mixture):
            raise ConfigError(
                f"mixture {mixture.name!r}: the rate of the mixture {member.name!r} must be a number\n"
                "  give one, or name its tasks one by one"
            )
        elif isinstance(rate, GroupRate):
            in_group.append(number)
            found.append(0.0)  # until all of the group are known
        else:
            assert rate is not None
            found.append(_called(rate, mixture, member, sizes))
    if isinstance(default, GroupRate) and in_group:
        tasks = [member for number in in_group if not isinstance(member := members[number][0], Mixture)]
        for number, rate in zip(in_group, default.rates(tasks, sizes), strict=True):
            found[number] = rate
    for (member, _), rate in zip(members, found, strict=True):
        if not 0 <= rate < float("inf"):
            raise ConfigError(
                f"mixture {mixture.name!r}: the rate of {member.name!r} is {rate}; it must be a number from 0 up"
            )
    return found


def _called(rate: Callable[..., float], mixture: Mixture, task: Task, sizes: Sizes) -> float:
    try:
        return float(rate(task, sizes))
    except (ConfigError, DataError):
        raise
    except Exception as error:
        raise ConfigError(
            f"mixture {mixture.name!r}: the function that gives the rate of {task.name!r} failed\n"
            f"  {type(error).__name__}: {error}"
        ) from error


def metric_kind(metric: Callable[..., Any]) -> MetricKind:
    """What a metric is called with, from the names of its parameters without default. Raises ConfigError where they are
    none of the three lists that there are."""
    parameters = inspect.signature(metric).parameters.values()
    given = tuple(parameter.name for parameter in parameters if parameter.default is parameter.empty)
    if given not in _METRIC_KINDS:
        choices = "; ".join(f"({', '.join(names)})" for names in _METRIC_KINDS)
        raise ConfigError(f"a metric takes {choices}\n  this one takes ({', '.join(given)})")
    return _METRIC_KINDS[given]


def _is_member(given: object) -> bool:
    member, rate = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given, None)
    is_rate = rate is None or isinstance(rate, (int, float)) or callable(rate)
    return isinstance(member, (str, Task, Mixture)) and is_rate


def _name_problems(name: str) -> list[str]:
    if _NAME.fullmatch(name):
        return []
    return [f"{name!r} is no name for a task or mixture; use letters, digits, and the characters _ . : #"]
