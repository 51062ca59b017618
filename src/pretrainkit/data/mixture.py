"""In which order the components of a weighted mixture take turns: a repeating pattern, so any position is looked up
in O(1).

The pattern is a schedule without bunching: after any number of slots each component has had its share to within one
slot (the single-processor case of the proportionate fairness of Baruah et al. 1996, "Proportionate progress: a notion
of fairness in resource allocation").
"""

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import ConfigError

MAX_SLOTS = 65536
"""Longest pattern. Weights that would need a longer one are rounded to multiples of 1 / MAX_SLOTS."""


def slot_counts(weights: Sequence[float], num_slots: int | None = None) -> tuple[int, ...]:
    """How many slots of the pattern each component gets, of `num_slots`, or of as few as have exactly these shares, at
    most MAX_SLOTS. Weights are positive, in any unit; decimal fractions are taken as written: 0.7 and 0.3 give 7 and 3.
    Raises ConfigError where a weight is not a positive number, or too small for even one slot."""
    for component, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigError(f"the weight of component {component} is {weight}; weights must be positive numbers")
    exact = [Fraction(str(float(weight))) for weight in weights]
    shares = [weight / sum(exact) for weight in exact]
    if num_slots is None:
        num_slots = min(math.lcm(*(share.denominator for share in shares)), MAX_SLOTS)
    counts = [math.floor(share * num_slots) for share in shares]
    # Largest remainder: the slots that rounding down left over go to those who lost most by it.
    by_remainder = sorted(range(len(shares)), key=lambda c: (counts[c] - shares[c] * num_slots, c))
    for component in by_remainder[: num_slots - sum(counts)]:
        counts[component] += 1
    if 0 in counts:
        component = counts.index(0)
        raise ConfigError(
            f"the weight of component {component} is {weights[component]:g}, a share of "
            f"{float(shares[component]):.3g}, which is less than one in {num_slots}\n  raise it or leave it out"
        )
    return tuple(counts)


def interleave(counts: Sequence[int]) -> NDArray[np.int64]:
    """The component of each slot, (sum(counts),). In every prefix of k slots, and across repetitions of the pattern,
    component c occurs k * counts[c] / sum(counts) times, give or take less than one."""
    num_slots = sum(counts)
    pattern = np.empty(num_slots, np.int64)
    # Draw j of a component must come at or after slot floor(j / share) and before slot ceil((j + 1) / share); the
    # earliest deadline goes first.
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
