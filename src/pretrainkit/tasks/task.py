"""Tasks and mixtures: what to read, how to make features of it, how to judge a model by it; found by name.

A *task* is a source, steps, output features with vocabularies, and for evaluation a postprocessor and metrics. A
*mixture* is tasks and mixtures with rates. Defining them reads no file and loads no tokenizer. Modules of users take
everything from here.

The contract follows SeqIO (https://arxiv.org/abs/2203.17189); what differs: examples are found by index and shuffled as
a whole, and vocabularies are compared by content.
"""

import dataclasses
import difflib
import inspect
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.files.manifest import fingerprint as json_fingerprint
from pretrainkit.tasks.cache import find_cache
from pretrainkit.tasks.identity import identity
from pretrainkit.tasks.rates import GroupRate, Rate, Sizes, combined
from pretrainkit.tasks.sources import TaskSource
from pretrainkit.tasks.steps import (
    BoundTask,
    CacheMarker,
    Example,
    Lengths,
    SourceExamples,
    Step,
    Steps,
    name_of,
    split_steps,
    wanted,
)
from pretrainkit.tasks.supply import ALL, OpenSource, RunSteps, RunVocabulary, Supply
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
        """Names of the splits that the source has."""
        return self.source.splits

    @property
    def cache_marker(self) -> CacheMarker | None:
        """Where the task can be cached; None: it cannot."""
        return split_steps(self.name, self.preprocessors)[2]

    def replace(self, **changes: Any) -> "Task":
        """Return a copy with other values of some fields."""
        return dataclasses.replace(self, **changes)

    def supplied(self, supply: Supply) -> "Task":
        """The task with what it leaves open, itself where that is nothing; see `supply.py`. Raises ConfigError where it
        leaves open what is not supplied; DataError where its data are not where they are said to be."""
        has_open_vocabulary = any(isinstance(one.vocabulary, RunVocabulary) for one in self.features.values())
        has_open_steps = any(isinstance(step, RunSteps) for step in self.preprocessors)
        if not (isinstance(self.source, OpenSource) or has_open_vocabulary or has_open_steps):
            return self
        features = {
            name: dataclasses.replace(feature, vocabulary=supply.vocabulary_of(self.name, feature.vocabulary))
            for name, feature in self.features.items()
        }
        steps = supply.steps_of(self.name, self.preprocessors)
        source = self.source.supplied(supply) if isinstance(self.source, OpenSource) else self.source
        return self.replace(source=source, features=features, preprocessors=steps)

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
    ) -> BoundTask:
        """The examples of a split. Raises DataError where there is no such split, or the task needs a cache and there
        is none.

        Args:
            lengths: Tokens per feature, to which examples are trimmed; None: not at all.
            seed: Of the random steps.
            caches: Folders of `pretrainkit tasks cache`, searched in this order. A cache that is not there, or was made
                of other data or by other steps, is passed over with a note.
        """
        marker = self.cache_marker
        cache = find_cache(self, split, caches) if marker is not None else None
        if cache is None and marker is not None and marker.required:
            raise DataError(
                f"task {self.name!r} needs a cache of {split!r} and there is none that fits"
                f"{''.join(f' in {folder}' for folder in caches)}\n"
                f"  make one: pretrainkit tasks cache {self.name} --out DIR"
            )
        stored = self.uncached(split, seed) if cache is None else cache.examples(split)
        return BoundTask(self, split, stored, lengths, seed, is_cached=cache is not None)

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


Entry = TypeVar("Entry", Task, Mixture)


@dataclass
class TaskRegistry:
    """Tasks and mixtures by name."""

    _tasks: dict[str, Task] = field(default_factory=dict)
    _mixtures: dict[str, Mixture] = field(default_factory=dict)
    _supply: Supply | None = None
    _supplied: dict[str, Task] = field(default_factory=dict)

    def supplied(self, supply: Supply) -> "TaskRegistry":
        """The same tasks and mixtures with what they leave open, found out when they are asked for. Raises ConfigError
        where there is no task or mixture of a name that is to be left out, or a folder is given to data that no task
        names."""
        sources = (task.source for task in self._tasks.values())
        places = {ALL, *(name for source in sources if isinstance(source, OpenSource) for name in source.names)}
        if unknown := sorted(supply.folders.keys() - places):
            raise ConfigError(
                f"no task has data of the name {unknown[0]!r}, for which {supply.folders[unknown[0]]} is given\n"
                f"  the nearest names are: {', '.join(nearest(unknown[0], sorted(places)))}"
            )
        left_out = set(supply.left_out)
        for name in supply.left_out:
            left_out |= {self.get(name).name, *self.task_names(name)}
        return TaskRegistry(self._tasks, self._mixtures, dataclasses.replace(supply, left_out=frozenset(left_out)))

    def add(self, entry: Entry) -> Entry:
        """Makes a task or mixture known, and returns it. Raises ConfigError where the name is taken by another of its
        kind, a member is unknown, members have other features, or a mixture would be a part of itself."""
        kind, known = ("task", self._tasks) if isinstance(entry, Task) else ("mixture", self._mixtures)
        if entry.name in known:
            raise ConfigError(
                f"there is a {kind} {entry.name!r} already\n  give this one another name, or remove it first"
            )
        if isinstance(entry, Task):
            self._tasks[entry.name] = entry
            return entry
        if entry.name in self._names_within(entry):
            raise ConfigError(
                f"mixture {entry.name!r} would be a part of itself: one of its members, or theirs, has that name\n"
                "  give it another name"
            )
        names = {name: sorted(self._tasks[name].features) for name in self._names_of(entry)}
        if len(set(map(tuple, names.values()))) > 1:
            table = "\n".join(f"  {name}: {', '.join(features)}" for name, features in names.items())
            raise ConfigError(f"the tasks of mixture {entry.name!r} have different output features\n{table}")
        self._mixtures[entry.name] = entry
        return entry

    def get(self, name: str) -> Task | Mixture:
        """The mixture or task of that name; a mixture comes before a task of the same name, with a warning. Raises
        ConfigError where there is none; the message has the nearest names."""
        if name in self._mixtures:
            if name in self._tasks:
                _logger.warning("there is a task and a mixture %s; the mixture is taken", name)
            return self._mixtures[name]
        if name in self._tasks:
            return self._task(name)
        near = nearest(name, self.names())
        hint = f"the nearest names are: {', '.join(near)}" if near else "none is known"
        raise ConfigError(
            f"there is no task or mixture {name!r}\n"
            f"  {hint}\n  all of them: pretrainkit tasks; those of your own module: name the module, too"
        )

    def get_task(self, name: str) -> Task:
        """The task of that name. Raises ConfigError where there is none, or a mixture only."""
        if name not in self._tasks:
            self.get(name)  # says so where there is nothing of that name
            raise ConfigError(f"{name!r} is a mixture, not a task\n  its tasks are: {', '.join(self.task_names(name))}")
        return self._task(name)

    def names(self) -> tuple[str, ...]:
        """Names of all tasks and mixtures, sorted."""
        return tuple(sorted({*self._tasks, *self._mixtures}))

    def remove(self, name: str) -> None:
        """Forgets the task and the mixture of that name. Raises ConfigError where there is neither."""
        self.get(name)
        self._tasks.pop(name, None)
        self._mixtures.pop(name, None)

    def reset(self) -> None:
        """Remove all tasks and mixtures."""
        self._tasks.clear()
        self._mixtures.clear()

    def tasks(self, name: str) -> tuple[Task, ...]:
        """The task of that name, or the tasks of the mixture, each once."""
        entry = self.get(name)
        return (entry,) if isinstance(entry, Task) else self._tasks_of(entry)

    def task_names(self, name: str) -> tuple[str, ...]:
        """Names of `tasks(name)`; needs nothing that tasks leave open."""
        if name in self._mixtures:
            return self._names_of(self._mixtures[name])
        return (name,) if name in self._tasks else (self.get_task(name).name,)

    def rates(
        self,
        name: str,
        *,
        split: str = "train",
        caches: Sequence[str | Path] = (),
        lengths: Lengths | None = None,
        is_told: bool = False,
    ) -> dict[str, float]:
        """Rate of every task of a mixture that has `split`, in examples by its name: its own and its shares of mixtures
        within. A task has rate 1. Raises ConfigError where no member has the split, a rate function failed, or a
        mixture has a rate that is no number.

        Args:
            split: Whose sizes rate functions look at; members without it are left out, with a warning.
            caches: Folders whose statistics rate functions look at; without, the source is asked.
            lengths: Tokens per feature, for rates of tokens.
            is_told: Whoever asks knows which members lack the split: no warning.
        """
        entry = self.get(name)
        if isinstance(entry, Task):
            entry.source.check_split(split)
            return {entry.name: 1.0}
        lacking = [task.name for task in self._tasks_of(entry) if split not in task.splits]
        for task_name in () if is_told else lacking:
            _logger.warning("mixture %s: task %s has no split %s and is left out", name, task_name, split)
        rates = self._rates(entry, Sizes(split, tuple(caches), lengths), frozenset(lacking))
        if not rates:
            raise ConfigError(f"no task of mixture {name!r} has the split {split!r}")
        return rates

    def bind(
        self,
        name: str,
        split: str,
        lengths: Lengths | None = None,
        *,
        seed: int = 0,
        caches: Sequence[str | Path] = (),
        is_told: bool = False,
    ) -> BoundMixture:
        """The tasks of a mixture (or the one task) with their weights; arguments are those of `Task.bind` and `rates`.

        Tasks of rate 0 are left out: they are for evaluation, where they are bound by themselves. Raises ConfigError
        where all rates are 0, or tasks have different vocabularies or dtypes; DataError as `Task.bind` does.
        """
        found = self.rates(name, split=split, caches=caches, lengths=lengths, is_told=is_told)
        rates = {task: rate for task, rate in found.items() if rate > 0}
        if not rates:
            raise ConfigError(f"all tasks of mixture {name!r} with the split {split!r} have rate 0")
        tasks = [self.get_task(task) for task in rates]
        check_alike(tasks)
        bound = (task.bind(split, lengths, seed=seed, caches=caches) for task in tasks)
        return BoundMixture(name, tuple(bound), tuple(rates.values()))

    def _member(self, name: str, within: str) -> Task | Mixture:
        try:
            return self.get(name)
        except ConfigError as error:
            raise ConfigError([f"mixture {within!r}: {problem}" for problem in error.problems]) from None

    def _task(self, name: str) -> Task:
        if self._supply is None:
            return self._tasks[name]
        if name not in self._supplied:
            self._supplied[name] = self._tasks[name].supplied(self._supply)
        return self._supplied[name]

    def _pairs(self, mixture: Mixture) -> tuple[tuple[str, Rate | None], ...]:
        """Those of its members that are not left out."""
        left_out = self._supply.left_out if self._supply is not None else frozenset()
        return tuple(pair for pair in mixture.pairs if pair[0] not in left_out)

    def _names_of(self, mixture: Mixture) -> tuple[str, ...]:
        """Names of the tasks of a mixture, each once."""
        found: dict[str, None] = {}
        for name, _ in self._pairs(mixture):
            if name in self._mixtures:
                found |= dict.fromkeys(self._names_of(self._mixtures[name]))
            elif name in self._tasks:
                found[name] = None
            else:
                self._member(name, mixture.name)
        if not found:
            raise ConfigError(f"nothing of mixture {mixture.name!r} is left\n  leave out less of it")
        return tuple(found)

    def _names_within(self, mixture: Mixture) -> set[str]:
        """Names of its members, and of theirs."""
        found: set[str] = set()
        waiting = [mixture]
        while waiting:
            own = {name for name, _ in waiting.pop().pairs} - found
            found |= own
            waiting += [self._mixtures[name] for name in own if name in self._mixtures]
        return found

    def _tasks_of(self, mixture: Mixture) -> tuple[Task, ...]:
        found, problems, lacking = [], [], []
        for name in self._names_of(mixture):
            try:
                found.append(self._task(name))
            except DataError as error:
                problems.append(str(error))
                lacking.append(name)
        if problems:
            mends = dict.fromkeys(problem.splitlines()[-1] for problem in problems)
            told = [line for problem in problems for line in problem.splitlines() if line not in mends]
            raise DataError(
                "\n".join(dict.fromkeys([*told, *mends]))
                + f"\n  or do without: data.leave_out={','.join(lacking)} in a "
                f"config, {' '.join(f'--leave-out {name}' for name in lacking)} of pretrainkit tasks"
            )
        return tuple(found)

    def _rates(self, mixture: Mixture, sizes: Sizes, lacking: frozenset[str]) -> dict[str, float]:
        present: list[tuple[Task | Mixture, Rate | None]] = []
        for name, rate in self._pairs(mixture):
            member = self._member(name, mixture.name)
            inside = (name,) if isinstance(member, Task) else self._names_of(member)
            if any(task not in lacking for task in inside):
                present.append((member, rate))
        rates = own_rates(mixture, present, sizes)
        parts = []
        for (member, _), rate in zip(present, rates, strict=True):
            within = {member.name: 1.0} if isinstance(member, Task) else self._rates(member, sizes, lacking)
            if mixture.rates_of == "tokens" and rate > 0:
                rate /= self._mean_tokens(within, sizes)
            parts.append((within, rate))
        return combined(parts)

    def _mean_tokens(self, rates: Mapping[str, float], sizes: Sizes) -> float:
        """Of an example of a mixture with these rates."""
        total = sum(rates.values())
        drawn = {name: rate for name, rate in rates.items() if rate > 0}
        return sum(rate / total * sizes.mean_tokens(self.get_task(name)) for name, rate in drawn.items())


REGISTRY = TaskRegistry()
"""Where the functions below look. The one thing of the package that importing a module changes: tasks are defined by
the modules of users, which have no other way to make them known."""


add_task = add_mixture = REGISTRY.add
get, names = REGISTRY.get, REGISTRY.names


def nearest(name: str, known: Sequence[str], count: int = 3) -> list[str]:
    """The `count` of `known` that are spelled most like `name`."""
    return difflib.get_close_matches(name, known, count, cutoff=0.0)
