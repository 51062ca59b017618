"""Rates of tasks in a mixture: numbers, or functions of the amount of data; and the share of each component of a
mixture in a training's examples and tokens.

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
"""A `Task` of task.py, which this file cannot import."""
NUM_MEASURED = 64
"""Examples of each component on which lengths are measured."""


@dataclass(frozen=True)
class Sizes:
    """Amounts of data of tasks, from the statistics of their caches or else from their sources."""

    split: str = "train"
    caches: tuple[str | Path, ...] = ()
    lengths: Lengths | None = None
    """Tokens to which features are trimmed."""

    def examples(self, task: Task) -> int:
        """Return the number of examples at the cache marker, or else of the source."""
        cache = find_cache(task, self.split, self.caches)
        return task.source.num_examples(self.split) if cache is None else int(cache.stats(self.split)["examples"])

    def characters(self, task: Task, feature: str = "targets") -> int:
        """Return the number of characters of a feature's text, which only caches contain."""
        cache = find_cache(task, self.split, self.caches)
        num_characters = None if cache is None else cache.stats(self.split).get(f"{feature}_chars")
        if num_characters is None:
            raise DataError(
                f"the number of characters of {feature!r} in task {task.name!r} is unknown\n"
                f"  create a cache (pretrainkit tasks cache {task.name} --out DIR) of a task that tokenizes {feature!r}"
            )
        return int(num_characters)

    def mean_tokens(self, task: Task) -> float:
        """Return the mean number of tokens of an example, inputs and targets together, over some examples as the model
        gets them. Raises DataError if they are empty."""
        bound = task.bind(self.split, self.lengths, caches=self.caches)
        mean = sum(mean_lengths(bound, ("inputs", "targets")).values())
        if not mean:
            raise DataError(
                f"the first examples of task {task.name!r} have neither inputs nor targets, so it cannot have a rate "
                "of tokens\n  use rates of examples: rates_of='examples'"
            )
        return mean


Rate: TypeAlias = float | Callable[[Any, Sizes], float]
"""A number, or a function of a `Task`."""


class GroupRate(ABC):
    """Rates that depend on all members together."""

    @abstractmethod
    def rates(self, tasks: Sequence[Task], sizes: Sizes) -> list[float]:
        """Return one rate per task."""


@dataclass(frozen=True)
class Proportional:
    """Rate in proportion to the number of examples: `min(examples * scale, maximum) ** (1 / temperature)`."""

    maximum: float | None = None
    """The artificial limit K of T5, which uses 2**21 examples; None: no limit."""
    scale: float = 1.0
    """Factor of the number of examples, before the limit."""
    temperature: float = 1.0
    """Temperature; above 1 makes rates more equal. mT5's exponent 0.3 is temperature 1 / 0.3."""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ConfigError(f"temperature is {self.temperature}; it must be above 0 (1: plain proportions)")

    def of(self, amount: float) -> float:
        """Return the rate of this number of examples."""
        scaled = amount * self.scale
        return (scaled if self.maximum is None else min(scaled, self.maximum)) ** (1 / self.temperature)

    def __call__(self, task: Task, sizes: Sizes) -> float:
        return self.of(sizes.examples(task))


@dataclass(frozen=True)
class ProportionalToCharacters(Proportional):
    """Rate in proportion to the characters of the text of `feature`, as counted by a cache."""

    feature: str = "targets"

    def __call__(self, task: Task, sizes: Sizes) -> float:
        return self.of(sizes.characters(task, self.feature))


proportional, proportional_to_characters = Proportional, ProportionalToCharacters
"""The same classes by the names that mixtures use. A function of a user may be used instead of them."""


@dataclass(frozen=True)
class UniMax(GroupRate):
    """Rates that spend a budget of examples as evenly as possible, with at most `max_epochs` passes over each task."""

    budget: float
    """Examples of the whole training, before packing."""
    max_epochs: float = 1.0
    """Largest number of passes over the data of a task; umT5 uses 1."""

    def rates(self, tasks: Sequence[Task], sizes: Sizes) -> list[float]:
        return unimax([sizes.examples(task) for task in tasks], self.budget, self.max_epochs)


def unimax(amounts: Sequence[float], budget: float, max_epochs: float) -> list[float]:
    """Return the part of `budget` for each of `amounts`: equal shares, but at most `max_epochs` times the amount.
    Larger amounts share the remainder. The sum is the budget, or all data if that is less."""
    shares = [0.0] * len(amounts)
    order = sorted(range(len(amounts)), key=lambda index: amounts[index])
    remainder = budget
    # Start with the smallest amount: what it leaves of its equal share is divided among the larger ones.
    for rank, index in enumerate(order):
        shares[index] = min(remainder / (len(order) - rank), amounts[index] * max_epochs)
        remainder -= shares[index]
    return shares


def combined(parts: Sequence[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """Return the rate of each task from pairs (rates within a member, rate of the member): rates are split in
    proportion."""
    rates: dict[str, float] = {}
    for inside, rate in parts:
        total = sum(inside.values())
        for name, own in inside.items():
            rates[name] = rates.get(name, 0.0) + (rate * own / total if total > 0 else 0.0)
    return rates


class Share(TypedDict):
    """Share of one component in a mixture."""

    name: str
    rate: float
    share: float
    """Share of the drawn examples."""
    examples: int
    """Number of existing examples."""
    mean_input_length: float
    """Mean tokens of an input."""
    mean_target_length: float
    share_of_input_tokens: float
    share_of_target_tokens: float


def spread(size: int, num: int = NUM_MEASURED) -> list[int]:
    """Return `num` indices (or all, if there are fewer) spread evenly over `size` examples."""
    return np.unique(np.linspace(0, size - 1, min(size, num), dtype=np.int64)).tolist() if size else []


def mean_lengths(examples: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, float]:
    """Return the mean numbers of tokens of sequences in some of the examples; 0 for missing sequences."""
    some = [examples[index] for index in spread(len(examples))]
    return {name: float(np.mean([np.size(example.get(name, ())) for example in some] or [0])) for name in names}


def shares(
    names: Sequence[str], rates: Sequence[float], sizes: Sequence[int], lengths: Sequence[tuple[float, float]]
) -> list[Share]:
    """Return a row for each component.

    Args:
        rates: Rates in any unit; 0 for components that are never drawn.
        sizes: Examples of each component.
        lengths: Mean tokens of inputs and targets.
    """
    share_C = np.array(rates, np.float64) / sum(rates)
    # Tokens of each component per draw from the mixture.
    tokens_C2 = share_C[:, None] * np.array(lengths, np.float64).reshape(-1, 2)
    token_share_C2 = tokens_C2 / np.maximum(tokens_C2.sum(0), np.finfo(np.float64).tiny)
    return [
        {
            "name": name,
            "rate": float(rate),
            "share": float(share),
            "examples": int(size),
            "mean_input_length": length[0],
            "mean_target_length": length[1],
            "share_of_input_tokens": float(token_share[0]),
            "share_of_target_tokens": float(token_share[1]),
        }
        for name, rate, share, size, length, token_share in zip(
            names, rates, share_C, sizes, lengths, token_share_C2, strict=True
        )
    ]


def epochs(row: Share, num_drawn: int) -> float:
    """Return the passes over a component's examples after `num_drawn` draws from the mixture; 0 for an empty
    component."""
    return num_drawn * row["share"] / row["examples"] if row["examples"] else 0.0


def table(rows: Sequence[Share], num_drawn: int | None = None) -> Iterator[str]:
    """Yield lines for display. `num_drawn`: examples of the training; None: without epochs."""
    width = max(len("mixture"), *(len(row["name"]) for row in rows))
    for number, row in enumerate(rows):
        cells = {
            "share": f"{row['share']:.2%}",
            "examples": f"{row['examples']:,}",
            **({} if num_drawn is None else {"epochs": _format_number(epochs(row, num_drawn))}),
            "inputs": f"{row['mean_input_length']:.1f}",
            "targets": f"{row['mean_target_length']:.1f}",
            "of inputs": f"{row['share_of_input_tokens']:.2%}",
            "of targets": f"{row['share_of_target_tokens']:.2%}",
        }
        if not number:
            yield f"{'mixture':<{width}} {'rate':>12} " + " ".join(f"{name:>11}" for name in cells)
        yield f"{row['name']:<{width}} {row['rate']:>12,.6g} " + " ".join(f"{cell:>11}" for cell in cells.values())


def _format_number(number: float) -> str:
    """Format a number with at least three digits, and without a power of ten if all digits fit."""
    return f"{number:,.0f}" if 999.5 <= number < 1e8 else f"{number:.3g}"
