"""Tasks and mixtures: what to read, how to make features of it, how to judge a model by it; found by name.

A *task* is a source, steps, output features with vocabularies, and for evaluation a postprocessor and metrics. A
*mixture* is tasks and mixtures with rates (`definitions.py`). Defining them reads no file and loads no tokenizer.
Modules of users take everything from here.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.tasks.definitions import (
    BoundMixture,
    Member,
    MetricKind,
    Mixture,
    Task,
    check_alike,
    metric_kind,
    own_rates,
)
from pretrainkit.tasks.rates import Rate, Sizes, combined
from pretrainkit.tasks.steps import Lengths
from pretrainkit.tasks.supply import ALL, OpenSource, Supply
from pretrainkit.tasks.vocabulary import Feature

__all__ = [
    "REGISTRY",
    "BoundMixture",
    "Feature",
    "Member",
    "MetricKind",
    "Mixture",
    "Task",
    "TaskRegistry",
    "add_mixture",
    "add_task",
    "check_alike",
    "get",
    "metric_kind",
    "names",
    "nearest",
]

Entry = TypeVar("Entry", Task, Mixture)
_logger = logging.getLogger(__name__)


@dataclass
class TaskRegistry:
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
        """Makes a task or mixture known, and returns it.

        Raises:
            ConfigError: The name is taken by another of its kind, a member is unknown, members have other features, or
                a mixture would be a part of itself.
        """
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
        return tuple(sorted({*self._tasks, *self._mixtures}))

    def remove(self, name: str) -> None:
        """Forgets the task and the mixture of that name. Raises ConfigError where there is neither."""
        self.get(name)
        self._tasks.pop(name, None)
        self._mixtures.pop(name, None)

    def reset(self) -> None:
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
        within. A task has rate 1.

        Args:
            split: Whose sizes rate functions look at; members without it are left out, with a warning.
            caches: Folders whose statistics rate functions look at; without, the source is asked.
            lengths: Tokens per feature, for rates of tokens.
            is_told: Whoever asks knows which members lack the split: no warning.

        Raises:
            ConfigError: No member has the split, a rate function failed, or a mixture has a rate that is no number.
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
        use_cache: bool = True,
        is_told: bool = False,
    ) -> BoundMixture:
        """The tasks of a mixture (or the one task) with their weights; arguments are those of `Task.bind` and `rates`.

        Tasks of rate 0 are left out: they are for evaluation, where they are bound by themselves.

        Raises:
            ConfigError: All rates are 0, or tasks have different vocabularies or dtypes.
            DataError: As of `Task.bind`.
        """
        found = self.rates(name, split=split, caches=caches, lengths=lengths, is_told=is_told)
        rates = {task: rate for task, rate in found.items() if rate > 0}
        if not rates:
            raise ConfigError(f"all tasks of mixture {name!r} with the split {split!r} have rate 0")
        tasks = [self.get_task(task) for task in rates]
        check_alike(tasks)
        bound = (task.bind(split, lengths, seed=seed, caches=caches, use_cache=use_cache) for task in tasks)
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
    """The `count` of `known` with the fewest edits (insert, delete, replace a character) to `name`."""
    return sorted(known, key=lambda one: (_edits(name, one), one))[:count]


def _edits(a: str, b: str) -> int:
    # Levenshtein's table, a row at a time; `diagonal` is the number above and to the left.
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]
