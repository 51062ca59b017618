"""Tasks and mixtures: data sources, steps that make features, and metrics for evaluation; registered by name.

A *task* is a source, steps, output features with vocabularies, and for evaluation a postprocessor and metrics. A
*mixture* is tasks and mixtures with rates. Defining them reads no file and loads no tokenizer. Modules of users import
everything from here.

The contract follows SeqIO (https://arxiv.org/abs/2203.17189), with two differences: examples are accessed by index and
shuffled globally, and vocabularies are compared by content.
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
    requested_arguments,
    split_steps,
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
    """A source with everything that makes examples from it."""

    name: str
    """Name, with letters, digits, `_`, `.`, `:` and `#`. In the cache, a colon separates folders."""
    source: TaskSource
    features: Mapping[str, Feature]
    """Output features, sorted by name."""
    preprocessors: Sequence[Step] = ()
    """Steps that are applied one after another; see `steps.py`."""
    postprocess: Callable[..., Any] | None = None
    """`postprocess(decoded, example=..., is_target=...)` of predictions and targets. None: the decoded text."""
    metrics: Sequence[Callable[..., Mapping[str, Any]]] = ()
    """Metrics with the parameters `(targets, predictions)`, `(targets, scores)` or `(targets, predictions,
    aux_values)`."""

    def __post_init__(self) -> None:
        problems = _name_problems(self.name)
        if not self.features:
            problems.append(f"task {self.name!r} has no output feature; add at least one")
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
            if "rng" in requested_arguments(step):
                message = "task %s: its random step %s comes before the cache marker, so all epochs are equal"
                _logger.warning(message, self.name, name_of(step))

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the source's splits."""
        return self.source.splits

    @property
    def cache_marker(self) -> CacheMarker | None:
        """The step at which the task can be cached; None: it cannot be cached."""
        return split_steps(self.name, self.preprocessors)[2]

    def replace(self, **changes: Any) -> "Task":
        """Return a copy with other values of some fields."""
        return dataclasses.replace(self, **changes)

    def supplied(self, supply: Supply) -> "Task":
        """Return the task with its open parts filled in, or the task itself if it has none; see `supply.py`.

        Raises ConfigError if an open part is not supplied; DataError if its data is not in the supplied folder."""
        has_open_vocabulary = any(isinstance(feature.vocabulary, RunVocabulary) for feature in self.features.values())
        has_open_steps = any(isinstance(step, RunSteps) for step in self.preprocessors)
        source = supply.source_of(self.source)
        if source is self.source and not has_open_vocabulary and not has_open_steps:
            return self
        features = {
            name: dataclasses.replace(feature, vocabulary=supply.vocabulary_of(self.name, feature.vocabulary))
            for name, feature in self.features.items()
        }
        steps = supply.steps_of(self.name, self.preprocessors)
        return self.replace(source=source, features=features, preprocessors=steps)

    def fingerprint(self, split: str) -> str:
        """Return a hash of the data, steps and vocabularies before the cache marker. Raises DataError if the source
        cannot be read."""
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
        """Return the examples of a split. Raises DataError if there is no such split, or a required cache is missing.

        Args:
            lengths: Tokens per feature to which examples are trimmed; None: no trimming.
            seed: Seed of the random steps.
            caches: Folders of `pretrainkit tasks cache`, searched in this order. Missing or outdated caches are skipped
                with a warning.
        """
        marker = self.cache_marker
        cache = find_cache(self, split, caches) if marker is not None else None
        if cache is None and marker is not None and marker.required:
            raise DataError(
                f"task {self.name!r} needs a cache of {split!r}, but there is no matching one"
                f"{''.join(f' in {folder}' for folder in caches)}\n"
                f"  create it: pretrainkit tasks cache {self.name} --out DIR"
            )
        stored = self.uncached(split, seed) if cache is None else cache.examples(split)
        return BoundTask(self, split, stored, lengths, seed, is_cached=cache is not None)

    def uncached(self, split: str, seed: int = 0) -> SourceExamples:
        """Return the examples of a split at the cache marker, computed from the source."""
        self.source.check_split(split)
        before = split_steps(self.name, self.preprocessors)[0]
        steps = Steps(self.name, before, first=0, seed=seed, lengths=None, features=self.features)
        return SourceExamples(self.source, split, steps)


@dataclass(frozen=True)
class Mixture:
    """Tasks and mixtures with rates. An example's task is drawn in proportion to its rate."""

    name: str
    """Name with the characters of a task's name."""
    members: "Sequence[Member | tuple[Member, Rate | None]]"
    """Names, or tasks and mixtures, alone or with a rate: a number, or a function of the task and `Sizes`. Rates of
    mixtures are numbers."""
    default_rate: Rate | GroupRate | None = None
    """Rate of members without their own; a `GroupRate` such as `UniMax` depends on all of them together."""
    rates_of: Literal["examples", "tokens"] = "examples"
    """Unit of the rates. tokens: of inputs and targets together, measured on some examples of each task."""

    def __post_init__(self) -> None:
        problems = _name_problems(self.name)
        wrong = [member for member in self.members if not _is_member(member)]
        if wrong:
            problems.append(
                f"mixture {self.name!r} has the invalid member {wrong[0]!r}\n  use a name, or (name, rate) with a "
                "number or a function of the task and its sizes as rate"
            )
            raise ConfigError(problems)
        pairs = self.pairs
        if not pairs:
            problems.append(f"mixture {self.name!r} has no members")
        names = [name for name, _ in pairs]
        problems += [
            f"mixture {self.name!r} contains {name!r} twice"
            for name in sorted({n for n in names if names.count(n) > 1})
        ]
        for name, rate in pairs:
            if rate is None and self.default_rate is None:
                problems.append(f"mixture {self.name!r} has no rate for {name!r} and no default_rate")
            if isinstance(rate, (int, float)) and not (rate >= 0 and math.isfinite(rate)):
                problems.append(f"mixture {self.name!r}: the rate of {name!r} is {rate}; it must be a number from 0 up")
        if self.rates_of == "tokens" and isinstance(self.default_rate, GroupRate):
            problems.append(
                f"mixture {self.name!r}: {type(self.default_rate).__name__} returns rates of examples, but rates_of is "
                "'tokens'; leave it out, or use numbers"
            )
        if problems:
            raise ConfigError(problems)
        object.__setattr__(self, "members", pairs)

    @property
    def pairs(self) -> "tuple[tuple[str, Rate | None], ...]":
        """Names of the members, with their own rates."""
        pairs: list[tuple[str, Rate | None]] = []
        for entry in self.members:
            member, rate = (entry, None) if isinstance(entry, (str, Task, Mixture)) else entry
            pairs.append((member if isinstance(member, str) else member.name, rate))
        return tuple(pairs)


@dataclass(frozen=True)
class BoundMixture:
    """A mixture bound to its data: bound tasks with weights, all above 0."""

    name: str
    tasks: tuple[BoundTask, ...]
    weights: tuple[float, ...]
    """Weights for `data.order.Order`, one per task; any sum."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Examples of each task."""
        return tuple(map(len, self.tasks))

    def example(self, source: int, index: int, epoch: int = 0) -> Example:
        """Return example `index` of task number `source`, in an epoch of that task."""
        return self.tasks[source].example(index, epoch)


Member: TypeAlias = str | Task | Mixture
"""Member of a mixture."""


def check_alike(tasks: Sequence[Task]) -> None:
    """Raise ConfigError if tasks of a mixture differ in the vocabulary, dtype or rank of a feature."""
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
    """Return the rate of each member within the mixture; a member that is a mixture counts as a whole.

    Raises ConfigError if the rate of a mixture is not a number, a rate is below 0, or a function failed."""
    default = mixture.default_rate
    rates: list[float] = []
    in_group: list[int] = []
    for number, (member, own) in enumerate(members):
        rate = default if own is None else own
        if isinstance(rate, (int, float)):
            rates.append(float(rate))
        elif isinstance(member, Mixture):
            raise ConfigError(
                f"mixture {mixture.name!r}: the rate of the mixture {member.name!r} must be a number\n"
                "  use a number, or list its tasks"
            )
        elif isinstance(rate, GroupRate):
            in_group.append(number)
            rates.append(0.0)  # until the whole group is known
        else:
            assert rate is not None
            rates.append(_called(rate, mixture, member, sizes))
    if isinstance(default, GroupRate) and in_group:
        tasks = [member for number in in_group if not isinstance(member := members[number][0], Mixture)]
        for number, rate in zip(in_group, default.rates(tasks, sizes), strict=True):
            rates[number] = rate
    for (member, _), rate in zip(members, rates, strict=True):
        if not 0 <= rate < float("inf"):
            raise ConfigError(
                f"mixture {mixture.name!r}: the rate of {member.name!r} is {rate}; it must be a number from 0 up"
            )
    return rates


def _called(rate: Callable[..., float], mixture: Mixture, task: Task, sizes: Sizes) -> float:
    try:
        return float(rate(task, sizes))
    except (ConfigError, DataError):
        raise
    except Exception as error:
        raise ConfigError(
            f"mixture {mixture.name!r}: the rate function of {task.name!r} failed\n  {type(error).__name__}: {error}"
        ) from error


def metric_kind(metric: Callable[..., Any]) -> MetricKind:
    """Return the arguments of a metric, from the names of its parameters without default. Raises ConfigError if they
    are not one of the three supported lists."""
    names = tuple(
        parameter.name
        for parameter in inspect.signature(metric).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    )
    if names not in _METRIC_KINDS:
        choices = "; ".join(f"({', '.join(choice)})" for choice in _METRIC_KINDS)
        raise ConfigError(f"a metric takes {choices}\n  this metric takes ({', '.join(names)})")
    return _METRIC_KINDS[names]


def _is_member(entry: object) -> bool:
    member, rate = entry if isinstance(entry, (tuple, list)) and len(entry) == 2 else (entry, None)
    is_rate = rate is None or isinstance(rate, (int, float)) or callable(rate)
    return isinstance(member, (str, Task, Mixture)) and is_rate


def _name_problems(name: str) -> list[str]:
    is_path = any(part in ("", ".", "..") for part in name.split(":"))  # each part becomes a folder of the cache
    if _NAME.fullmatch(name) and not is_path:
        return []
    return [f"{name!r} is not a valid name of a task or mixture; use letters, digits, and the characters _ . : #"]


Entry = TypeVar("Entry", Task, Mixture)


@dataclass
class TaskRegistry:
    """Tasks and mixtures by name."""

    _tasks: dict[str, Task] = field(default_factory=dict)
    _mixtures: dict[str, Mixture] = field(default_factory=dict)
    _supply: Supply | None = None
    _supplied: dict[str, Task] = field(default_factory=dict)

    def supplied(self, supply: Supply) -> "TaskRegistry":
        """Return the same tasks and mixtures with their open parts filled in when they are used.

        Raises ConfigError if a name to leave out is unknown, or a folder is for data that no task uses."""
        sources = (task.source for task in self._tasks.values())
        places = {ALL, *(name for source in sources if isinstance(source, OpenSource) for name in source.names)}
        if unknown := sorted(supply.folders.keys() - places):
            raise ConfigError(
                f"no task uses data named {unknown[0]!r}, for which {supply.folders[unknown[0]]} is configured\n"
                f"  the nearest names are: {', '.join(nearest(unknown[0], sorted(places)))}"
            )
        left_out = set(supply.left_out)
        for name in supply.left_out:
            left_out |= {self.get(name).name, *self.task_names(name)}
        return TaskRegistry(self._tasks, self._mixtures, dataclasses.replace(supply, left_out=frozenset(left_out)))

    def add(self, entry: Entry) -> Entry:
        """Register a task or mixture, and return it. Raises ConfigError if the name is taken, a member is unknown,
        members have different features, or a mixture would contain itself."""
        kind, known = ("task", self._tasks) if isinstance(entry, Task) else ("mixture", self._mixtures)
        if entry.name in known:
            raise ConfigError(f"there is already a {kind} {entry.name!r}\n  choose another name, or remove it first")
        if isinstance(entry, Task):
            self._tasks[entry.name] = entry
            return entry
        if entry.name in self._names_within(entry):
            raise ConfigError(
                f"mixture {entry.name!r} would contain itself: one of its members, or theirs, has that name\n"
                "  choose another name"
            )
        names = {name: sorted(self._tasks[name].features) for name in self._names_of(entry)}
        if len(set(map(tuple, names.values()))) > 1:
            table = "\n".join(f"  {name}: {', '.join(features)}" for name, features in names.items())
            raise ConfigError(
                f"the tasks of mixture {entry.name!r} have different output features\n{table}\n"
                "  define the same features for all of them, or leave some tasks out"
            )
        self._mixtures[entry.name] = entry
        return entry

    def get(self, name: str) -> Task | Mixture:
        """Return the mixture or task of that name. A mixture precedes a task of the same name, with a warning. Raises
        ConfigError for an unknown name; the message has the nearest names."""
        if name in self._mixtures:
            if name in self._tasks:
                _logger.warning("%s is the name of a task and of a mixture; the mixture is used", name)
            return self._mixtures[name]
        if name in self._tasks:
            return self._task(name)
        near = nearest(name, self.names())
        hint = f"the nearest names are: {', '.join(near)}" if near else "no task is registered"
        raise ConfigError(
            f"there is no task or mixture {name!r}\n"
            f"  {hint}\n  list all: pretrainkit tasks\n"
            "  a task of your own module needs --module FILE.py, or data.modules=[FILE.py] in the config of a run"
        )

    def get_task(self, name: str) -> Task:
        """Return the task of that name. Raises ConfigError if it is unknown or a mixture."""
        if name not in self._tasks:
            self.get(name)  # raises for an unknown name
            raise ConfigError(f"{name!r} is a mixture, not a task\n  its tasks are: {', '.join(self.task_names(name))}")
        return self._task(name)

    def names(self) -> tuple[str, ...]:
        """Names of all tasks and mixtures, sorted."""
        return tuple(sorted({*self._tasks, *self._mixtures}))

    def remove(self, name: str) -> None:
        """Remove the task and the mixture of that name. Raises ConfigError if both are unknown."""
        self.get(name)
        self._tasks.pop(name, None)
        self._mixtures.pop(name, None)

    def reset(self) -> None:
        """Remove all tasks and mixtures."""
        self._tasks.clear()
        self._mixtures.clear()

    def tasks(self, name: str) -> tuple[Task, ...]:
        """Return the task of that name, or the unique tasks of the mixture."""
        entry = self.get(name)
        return (entry,) if isinstance(entry, Task) else self._tasks_of(entry)

    def task_names(self, name: str) -> tuple[str, ...]:
        """Return the names of `tasks(name)`, without filling in open parts."""
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
        is_quiet: bool = False,
    ) -> dict[str, float]:
        """Return the rate of every task of a mixture that has `split`, in examples: its own and its shares of inner
        mixtures. A single task has rate 1.

        Raises ConfigError if no member has the split, a rate function failed, or the rate of a mixture is not a number.

        Args:
            split: The split whose sizes rate functions use; members without it are left out, with a warning.
            caches: Folders whose statistics rate functions use; otherwise they use the source.
            lengths: Tokens per feature, for rates of tokens.
            is_quiet: Do not warn of members that lack the split.
        """
        entry = self.get(name)
        if isinstance(entry, Task):
            entry.source.check_split(split)
            return {entry.name: 1.0}
        lacking = [task.name for task in self._tasks_of(entry) if split not in task.splits]
        for task_name in () if is_quiet else lacking:
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
        is_quiet: bool = False,
    ) -> BoundMixture:
        """Return the tasks of a mixture (or one task) with weights; arguments are those of `Task.bind` and `rates`.

        Tasks of rate 0 are left out: they are only for evaluation, which binds them separately. Raises ConfigError if
        all rates are 0, or tasks have different vocabularies or dtypes; DataError like `Task.bind`.
        """
        all_rates = self.rates(name, split=split, caches=caches, lengths=lengths, is_quiet=is_quiet)
        rates = {task: rate for task, rate in all_rates.items() if rate > 0}
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
        """Return the members that are not left out."""
        left_out = self._supply.left_out if self._supply is not None else frozenset()
        return tuple(pair for pair in mixture.pairs if pair[0] not in left_out)

    def _names_of(self, mixture: Mixture) -> tuple[str, ...]:
        """Return the unique names of a mixture's tasks."""
        tasks: dict[str, None] = {}
        for name, _ in self._pairs(mixture):
            if name in self._mixtures:
                tasks |= dict.fromkeys(self._names_of(self._mixtures[name]))
            elif name in self._tasks:
                tasks[name] = None
            else:
                self._member(name, mixture.name)
        if not tasks:
            raise ConfigError(f"every member of mixture {mixture.name!r} is left out\n  leave out fewer of them")
        return tuple(tasks)

    def _names_within(self, mixture: Mixture) -> set[str]:
        """Return the names of its members, and of theirs."""
        within: set[str] = set()
        waiting = [mixture]
        while waiting:
            own = {name for name, _ in waiting.pop().pairs} - within
            within |= own
            waiting += [self._mixtures[name] for name in own if name in self._mixtures]
        return within

    def _tasks_of(self, mixture: Mixture) -> tuple[Task, ...]:
        tasks, problems, lacking = [], [], []
        for name in self._names_of(mixture):
            try:
                tasks.append(self._task(name))
            except DataError as error:
                problems.append(str(error))
                lacking.append(name)
        if problems:
            fixes = dict.fromkeys(problem.splitlines()[-1] for problem in problems)
            lines = [line for problem in problems for line in problem.splitlines() if line not in fixes]
            raise DataError(
                "\n".join(dict.fromkeys([*lines, *fixes]))
                + f"\n  or leave them out: data.leave_out={','.join(lacking)} in a "
                f"config, {' '.join(f'--leave-out {name}' for name in lacking)} of pretrainkit tasks"
            )
        return tuple(tasks)

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
        """Return the mean number of tokens of an example of a mixture with these rates."""
        total = sum(rates.values())
        drawn = {name: rate for name, rate in rates.items() if rate > 0}
        return sum(rate / total * sizes.mean_tokens(self.get_task(name)) for name, rate in drawn.items())


REGISTRY = TaskRegistry()
"""The registry of the functions below. Modules of users register their tasks here when they are imported."""


add_task = add_mixture = REGISTRY.add
get, names = REGISTRY.get, REGISTRY.names


def nearest(name: str, known: Sequence[str], count: int = 3) -> list[str]:
    """Return the `count` names of `known` with the most similar spelling to `name`."""
    return difflib.get_close_matches(name, known, count, cutoff=0.0)
