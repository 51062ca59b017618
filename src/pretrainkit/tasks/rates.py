"""Rates of tasks in a mixture: numbers, or functions of how much data there is; and how much of a training each
component of a mixture is: of its examples, and of the tokens that these have.

Sources: T5's examples-proportional mixing with an artificial limit and a temperature, section 3.5.2 of
https://arxiv.org/abs/1910.10683; UniMax, https://openreview.net/forum?id=kXwdL1cWOAi.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypedDict

import numpy as np

from pretrainkit.errors import ConfigError, DataError
from pretrainkit.tasks.cache import find_cache
from pretrainkit.tasks.steps import Lengths

Task: TypeAlias = Any
"""A `Task` of task.py, which imports this file."""
NUM_MEASURED = 64
"""Examples of each component that lengths are measured on."""


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


class Share(TypedDict):
    """One component."""

    name: str
    rate: float
    share: float
    """Of the examples that are drawn."""
    examples: int
    """That there are."""
    mean_input_length: float
    """Tokens."""
    mean_target_length: float
    share_of_input_tokens: float
    share_of_target_tokens: float


def spread(size: int, num: int = NUM_MEASURED) -> list[int]:
    """`num` indices (or all, if there are fewer) spread evenly over `size` examples."""
    return np.unique(np.linspace(0, size - 1, min(size, num), dtype=np.int64)).tolist() if size else []


def mean_lengths(examples: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, float]:
    """Mean tokens of sequences in some of the examples; 0 for those that none has."""
    some = [examples[index] for index in spread(len(examples))]
    return {name: float(np.mean([np.size(one.get(name, ())) for one in some] or [0])) for name in names}


def shares(
    names: Sequence[str], rates: Sequence[float], sizes: Sequence[int], lengths: Sequence[tuple[float, float]]
) -> list[Share]:
    """A row for each component.

    Args:
        rates: In any unit, 0 for what is never drawn.
        sizes: Examples of each.
        lengths: Mean tokens of the inputs and of the targets.
    """
    share_C = np.array(rates, np.float64) / sum(rates)
    # Tokens of each component per draw from the mixture.
    tokens_C2 = share_C[:, None] * np.array(lengths, np.float64).reshape(-1, 2)
    of_tokens_C2 = tokens_C2 / np.maximum(tokens_C2.sum(0), np.finfo(np.float64).tiny)
    return [
        {
            "name": name,
            "rate": float(rate),
            "share": float(share),
            "examples": int(size),
            "mean_input_length": length[0],
            "mean_target_length": length[1],
            "share_of_input_tokens": float(of_tokens[0]),
            "share_of_target_tokens": float(of_tokens[1]),
        }
        for name, rate, share, size, length, of_tokens in zip(
            names, rates, share_C, sizes, lengths, of_tokens_C2, strict=True
        )
    ]


def epochs(row: Share, num_drawn: int) -> float:
    """Passes over a component's examples when `num_drawn` of the mixture are drawn; 0 where it has none."""
    return num_drawn * row["share"] / row["examples"] if row["examples"] else 0.0


def table(rows: Sequence[Share], num_drawn: int | None = None) -> Iterator[str]:
    """Lines for people. `num_drawn`: examples of the training; None: epochs are not shown."""
    width = max(len("mixture"), *(len(row["name"]) for row in rows))
    for number, row in enumerate(rows):
        cells = {
            "share": f"{row['share']:.2%}",
            "examples": f"{row['examples']:,}",
            **({} if num_drawn is None else {"epochs": _short(epochs(row, num_drawn))}),
            "inputs": f"{row['mean_input_length']:.1f}",
            "targets": f"{row['mean_target_length']:.1f}",
            "of inputs": f"{row['share_of_input_tokens']:.2%}",
            "of targets": f"{row['share_of_target_tokens']:.2%}",
        }
        if not number:
            yield f"{'mixture':<{width}} {'rate':>12} " + " ".join(f"{name:>11}" for name in cells)
        yield f"{row['name']:<{width}} {row['rate']:>12,.6g} " + " ".join(f"{cell:>11}" for cell in cells.values())


def _short(number: float) -> str:
    """Three digits at least, never a power of ten where all digits fit."""
    return f"{number:,.0f}" if 999.5 <= number < 1e8 else f"{number:.3g}"
