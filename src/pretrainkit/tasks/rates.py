"""Rates of tasks in a mixture: numbers, or functions of how much data there is.

Sources: T5's examples-proportional mixing with an artificial limit and a temperature, section 3.5.2 of
https://arxiv.org/abs/1910.10683; UniMax, https://openreview.net/forum?id=kXwdL1cWOAi.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.tasks.cache import find_cache
from pretrainkit.tasks.shares import mean_lengths
from pretrainkit.tasks.steps import Lengths

Task: TypeAlias = Any
"""A `Task` of task.py, which imports this file."""


@dataclass(frozen=True)
class Sizes:
    """How much data tasks have: from the statistics of their caches, else from their sources."""

    split: str = "train"
    caches: tuple[str | Path, ...] = ()
    lengths: Lengths | None = None
    """Tokens to which features are trimmed."""

    def examples(self, task: Task) -> int:
        """Examples of the cache at the marker, else of the source."""
        cache = find_cache(task, self.split, self.caches)
        return task.source.num_examples(self.split) if cache is None else int(cache.stats(self.split)["examples"])

    def characters(self, task: Task, feature: str = "targets") -> int:
        """Characters of a feature's text; only caches know them."""
        cache = find_cache(task, self.split, self.caches)
        found = None if cache is None else cache.stats(self.split).get(f"{feature}_chars")
        if found is None:
            raise DataError(
                f"how many characters {feature!r} of task {task.name!r} has is not known\n"
                f"  make a cache (pretrainkit tasks cache {task.name} --out DIR) of a task that tokenizes {feature!r}"
            )
        return int(found)

    def mean_tokens(self, task: Task) -> float:
        """Tokens of an example, inputs and targets together, as the model gets it: the mean of some examples. Raises
        DataError where they have none."""
        bound = task.bind(self.split, self.lengths, caches=self.caches)
        mean = sum(mean_lengths(bound, ("inputs", "targets")).values())
        if not mean:
            raise DataError(
                f"the first examples of task {task.name!r} have neither inputs nor targets, so its rate cannot be one "
                "of tokens\n  give rates of examples: rates_of='examples'"
            )
        return mean


Rate: TypeAlias = float | Callable[[Any, Sizes], float]
"""A number, or a function of a `Task`."""


class GroupRate(ABC):
    """Rates that depend on all members together."""

    @abstractmethod
    def rates(self, tasks: Sequence[Task], sizes: Sizes) -> list[float]:
        """One rate per task."""


@dataclass(frozen=True)
class Proportional:
    """A rate in proportion to the number of examples: `min(examples * scale, maximum) ** (1 / temperature)`."""

    maximum: float | None = None
    """The artificial limit K of T5, which uses 2**21 examples; None: no limit."""
    scale: float = 1.0
    """Multiplies the number of examples before the limit is applied."""
    temperature: float = 1.0
    """Above 1 evens out; mT5's exponent 0.3 is temperature 1 / 0.3."""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ConfigError(f"temperature is {self.temperature}; it must be above 0, and is 1 for plain proportions")

    def of(self, amount: float) -> float:
        """The rate of so many examples."""
        scaled = amount * self.scale
        return (scaled if self.maximum is None else min(scaled, self.maximum)) ** (1 / self.temperature)

    def __call__(self, task: Task, sizes: Sizes) -> float:
        return self.of(sizes.examples(task))


@dataclass(frozen=True)
class ProportionalToCharacters(Proportional):
    """As `Proportional`, of the characters that a cache counted in the text of `feature`."""

    feature: str = "targets"

    def __call__(self, task: Task, sizes: Sizes) -> float:
        return self.of(sizes.characters(task, self.feature))


proportional, proportional_to_characters = Proportional, ProportionalToCharacters
"""Their names in mixtures, where they stand among functions of users."""


@dataclass(frozen=True)
class UniMax(GroupRate):
    """A budget of examples, spent as evenly as possible without going over any task more than `max_epochs` times."""

    budget: float
    """Examples of the whole training, before packing."""
    max_epochs: float = 1.0
    """Passes over the data of a task at most; umT5 uses 1."""

    def rates(self, tasks: Sequence[Task], sizes: Sizes) -> list[float]:
        return unimax([sizes.examples(task) for task in tasks], self.budget, self.max_epochs)


def unimax(amounts: Sequence[float], budget: float, max_epochs: float) -> list[float]:
    """What each of `amounts` gets of `budget`: equal shares, except that none gets more than `max_epochs` times its
    amount; what it leaves is shared by those that are larger. Adds up to the budget, or to all there is."""
    shares = [0.0] * len(amounts)
    order = sorted(range(len(amounts)), key=lambda one: amounts[one])
    left = budget
    # From the smallest on: what is left is shared equally by those to come, and the capped ones come first.
    for rank, one in enumerate(order):
        shares[one] = min(left / (len(order) - rank), amounts[one] * max_epochs)
        left -= shares[one]
    return shares


def combined(parts: Sequence[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """Rate per task of (rates within a member, rate of the member): a member's rate is split in proportion."""
    rates: dict[str, float] = {}
    for inside, rate in parts:
        total = sum(inside.values())
        for name, own in inside.items():
            rates[name] = rates.get(name, 0.0) + (rate * own / total if total > 0 else 0.0)
    return rates
