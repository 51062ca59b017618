"""Choice of the component of each batch, for orders in which a batch holds examples of a single component.

"Debiased sampling" (Cui et al. 2022, https://arxiv.org/abs/2112.09331): examples that are contrasted with each other
come from one data set, so that recognizing the data set does not help.

Turns are pure functions of the step and do not depend on earlier calls. Weighted components that
share batches take turns in a repeating pattern instead (`interleave`), which is looked up in O(1).

Dimensions: S steps.
"""

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np

from pretrainkit import rng
from pretrainkit.data.permutation import Ints, permute
from pretrainkit.errors import ConfigError, DataError

MAX_SLOTS = 65536
"""Longest pattern. Weights that would need a longer one are rounded to multiples of 1 / MAX_SLOTS."""
_FEWEST_DRAWS = 1024


def slot_counts(weights: Sequence[float], num_slots: int | None = None) -> tuple[int, ...]:
    """Return the number of slots of each component in the pattern. Raises ConfigError if a weight is not a positive
    number, or too small for one slot.

    Args:
        weights: One per component, positive, in any unit. Decimal fractions are exact: 0.7 and 0.3 give 7 and 3
            slots.
        num_slots: Length of the pattern; None: the shortest with exactly these shares, at most MAX_SLOTS.
    """
    for component, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigError(f"the weight of component {component} is {weight}; weights must be positive numbers")
    exact = [Fraction(str(float(weight))) for weight in weights]
    shares = [weight / sum(exact) for weight in exact]
    if num_slots is None:
        num_slots = min(math.lcm(*(share.denominator for share in shares)), MAX_SLOTS)
    counts = [math.floor(share * num_slots) for share in shares]
    # Largest remainder method: components that lost most by rounding down get the remaining slots.
    by_remainder = sorted(range(len(shares)), key=lambda c: (counts[c] - shares[c] * num_slots, c))
    for component in by_remainder[: num_slots - sum(counts)]:
        counts[component] += 1
    for component, count in enumerate(counts):
        if count == 0:
            raise ConfigError(
                f"the weight of component {component} is {weights[component]:g}, a share of "
                f"{float(shares[component]):.3g}, which is less than one in {num_slots}\n  raise it or leave it out"
            )
    return tuple(counts)


def interleave(counts: Sequence[int]) -> Ints:
    """Return the component of each slot, (sum(counts),), evenly spread. In every prefix of k slots, and across
    repetitions of the pattern, component c occurs k * counts[c] / sum(counts) times, with an error below one.

    This is the single-processor case of the proportionate fairness of Baruah et al. 1996, "Proportionate progress: a
    notion of fairness in resource allocation".
    """
    num_slots = sum(counts)
    pattern = np.empty(num_slots, np.int64)
    # Draw j of a component must come at or after slot floor(j / share) and before slot ceil((j + 1) / share); the
    # earliest deadline comes first.
    waiting = [(0, component, 0) for component in range(len(counts))]
    ready: list[tuple[int, int, int]] = []
    for slot in range(num_slots):
        while waiting and waiting[0][0] <= slot:
            _, component, draw = heapq.heappop(waiting)
            heapq.heappush(ready, (-(-(draw + 1) * num_slots // counts[component]), component, draw))
        _, component, draw = heapq.heappop(ready)
        pattern[slot] = component
        if draw + 1 < counts[component]:
            heapq.heappush(waiting, ((draw + 1) * num_slots // counts[component], component, draw + 1))
    return pattern


@dataclass(frozen=True, kw_only=True)
class Debias:
    """Draw of the component of each batch."""

    exponent: float = 1.0
    """A component of N examples is drawn in proportion to N ** exponent, unless components have weights."""
    draw: Literal["random", "balanced"] = "random"
    """random: an independent draw for every batch. balanced: each epoch has all whole batches of every component, in
    shuffled order."""
    seed: int = 2021
    """Seed of the sequence of components."""


class Turns(ABC):
    """Sequence of the components of the batches."""

    epoch_size: int
    """Average number of examples in one pass over all components (with weights: over the most repeated component)."""

    @abstractmethod
    def locate(self, steps: Ints) -> tuple[Ints, Ints]:
        """Return (component, number of the batch within the component), each (S,), for (S,) steps >= 0 in any order."""


@lru_cache(maxsize=4)
def _draws(shares: tuple[float, ...], seed: int, num: int) -> tuple[Ints, Ints]:
    """Return the components of the first `num` steps and the number of earlier draws of each, both (num,).

    They equal `num` single draws of `numpy.random.default_rng(seed).choice(len(shares), p=shares)`.
    """
    return _numbered(np.random.default_rng(seed).choice(len(shares), size=num, p=shares), len(shares))


@lru_cache(maxsize=4)
def _shuffled(counts: tuple[int, ...], key: int, epoch: int) -> tuple[Ints, Ints]:
    """Return each component `counts` times, shuffled, and the number of its earlier occurrences in the epoch."""
    num_steps = sum(counts)
    places = permute(np.arange(num_steps), num_steps, rng.fold(key, np.array([epoch])))
    return _numbered(np.repeat(np.arange(len(counts)), counts)[places], len(counts))


def _numbered(component: Ints, num_components: int) -> tuple[Ints, Ints]:
    """Return the components and the number of earlier occurrences of each. Both are read-only, because they are
    cached."""
    number = np.empty(len(component), np.int64)
    for c in range(num_components):
        rows = np.flatnonzero(component == c)
        number[rows] = np.arange(len(rows))
    component.flags.writeable = number.flags.writeable = False
    return component, number


class RandomTurns(Turns):
    """Draws a component for each step with fixed probabilities, in one sequence across epochs.

    `seed` is the seed of NumPy's default generator. `reopens`: like ZeroVL, use only whole batches of a component, and
    start all components from their beginning after as many steps as all components have whole batches.
    """

    def __init__(
        self, sizes: Sequence[int], shares: Sequence[float], batch_size: int, seed: int, *, reopens: bool
    ) -> None:
        self._shares, self._seed = tuple(float(share) for share in shares), seed
        self._batches = np.array(sizes, np.int64) // batch_size
        self._reopens = reopens
        least = min(size / share for size, share in zip(sizes, self._shares, strict=True))
        self.epoch_size = int(self._batches.sum()) * batch_size if reopens else round(least)

    def locate(self, steps: Ints) -> tuple[Ints, Ints]:
        highest = int(steps.max(initial=0))
        num = max(_FEWEST_DRAWS, 1 << highest.bit_length())  # doubles, so that few lengths are cached
        components, numbers = _draws(self._shares, self._seed, num)
        component, number = components[steps], numbers[steps]
        if not self._reopens:
            return component, number
        per_epoch = int(self._batches.sum())
        epoch = steps // per_epoch
        for c, batches in enumerate(self._batches.tolist()):
            rows = np.flatnonzero(component == c)
            before_epoch = np.searchsorted(np.flatnonzero(components == c), epoch[rows] * per_epoch)
            passes = -(-per_epoch // batches)  # an upper bound for one epoch, so that all passes have different numbers
            number[rows] += epoch[rows] * passes * batches - before_epoch
        return component, number


class BalancedTurns(Turns):
    """All whole batches of every component in each epoch, in an order that is shuffled per epoch.

    Each component has at least `batch_size` examples."""

    def __init__(self, sizes: Sequence[int], batch_size: int, seed: int) -> None:
        self._counts = tuple(size // batch_size for size in sizes)
        self.epoch_size = sum(self._counts) * batch_size
        self._key = rng.stream_key(seed, "turns")

    def locate(self, steps: Ints) -> tuple[Ints, Ints]:
        epoch, within = np.divmod(steps, sum(self._counts))
        component, number = np.empty_like(steps), np.empty_like(steps)
        for number_of_epoch in np.unique(epoch).tolist():
            rows = np.flatnonzero(epoch == number_of_epoch)
            components, numbers = _shuffled(self._counts, self._key, number_of_epoch)
            component[rows], number[rows] = components[within[rows]], numbers[within[rows]]
        return component, number + epoch * np.array(self._counts)[component]


class SetBySet(Turns):
    """All batches of the first component, then all batches of the second, and so on, in each epoch.

    `drops`: use only the whole batches of a component in each epoch; otherwise its remaining examples start the next
    epoch.
    """

    def __init__(self, sizes: Sequence[int], batch_size: int, *, drops: bool) -> None:
        usable = [size // batch_size * batch_size for size in sizes] if drops else sizes
        self._usable, self._batch_size = np.array(usable, np.int64), batch_size
        self.epoch_size = int(self._usable.sum())

    def locate(self, steps: Ints) -> tuple[Ints, Ints]:
        epoch = steps * self._batch_size // self.epoch_size  # a lower bound: remainders of earlier epochs delay it
        while (is_later := self._batches_before(epoch + 1).sum(-1) <= steps).any():
            epoch = epoch + is_later
        first = self._batches_before(epoch)
        ends = np.cumsum(self._batches_before(epoch + 1) - first, -1)
        within = steps - first.sum(-1)
        component = (ends <= within[:, None]).sum(-1)
        row = np.arange(len(steps))
        starts = np.concatenate([np.zeros_like(ends[:, :1]), ends], -1)[row, component]
        return component, first[row, component] + within - starts

    def _batches_before(self, epoch: Ints) -> Ints:
        """Return (S, number of components): the whole batches of each component before each of the (S,) epochs."""
        return epoch[:, None] * self._usable // self._batch_size


def make_turns(
    mode: Literal["debias", "set_by_set"],
    sizes: Sequence[int],
    weights: Sequence[float] | None,
    batch_size: int,
    debias: Debias,
    *,
    is_static: bool,
) -> tuple[Turns, str]:
    """Return the turns of components of `sizes` examples, and a text that identifies them. Raises ConfigError if
    settings contradict each other, DataError if a component is too small for a balanced draw.

    Args:
        mode: debias: draw a component for each batch. set_by_set: one component after another.
        weights: Only for "debias": relative probability of each component; None: by size.
        is_static: Use only the whole batches of a component in each epoch.
    """
    if mode == "set_by_set":
        if weights is not None:
            raise ConfigError(
                "components that come one after another have no weights\n"
                "  leave the weights out, or draw a component for each batch (debias)"
            )
        return SetBySet(sizes, batch_size, drops=is_static), repr((batch_size, is_static))
    settings = repr((batch_size, is_static, debias, weights))
    is_by_size = weights is None and debias.draw == "random"
    if debias.exponent != 1 and not is_by_size:
        raise ConfigError(
            f"the exponent {debias.exponent} of the sizes has no effect if components have weights or the draw "
            "is balanced\n  leave it at 1, or draw at random by size"
        )
    if debias.draw == "random":
        mass = np.array(sizes if weights is None else weights, np.float64) ** debias.exponent
        shares = (mass / mass.sum()).tolist()
        return RandomTurns(sizes, shares, batch_size, debias.seed, reopens=is_static), settings
    if weights is not None:
        raise ConfigError(
            "a balanced draw uses all whole batches of each component and ignores its weight\n"
            "  leave the weights out, or draw at random"
        )
    for component, size in enumerate(sizes):
        if size < batch_size:
            raise DataError(
                f"component {component} has {size} examples, less than a batch of {batch_size}: a balanced draw "
                "would never use it\n  leave it out, draw at random, or use smaller batches"
            )
    return BalancedTurns(sizes, batch_size, debias.seed), settings
