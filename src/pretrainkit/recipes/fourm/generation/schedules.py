"""How many tokens an image gets in each step, and how hot they are drawn. Torch-free.

Dimensions: S steps.
Sources: Chang et al. 2022 (MaskGIT), https://arxiv.org/abs/2202.04200, cosine schedule; released code of 4M
(https://arxiv.org/abs/2312.06647) for everything else.
"""

import contextlib
import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from pretrainkit.errors import ConfigError

COLDEST = 1e-9
"""Below any temperature that matters: the likeliest token is taken."""
_DECAY = re.compile(r"onex:([0-9.eE+-]+):([0-9.eE+-]+)")
_REACH = 100.0


def cosine(num_steps: int, num_tokens: int) -> list[int]:
    """Few tokens in the first and the last steps. Where steps are many, the first get none, and maybe the last: each is
    rounded by itself, and never more than are left."""
    curve = [0.5 * (1 + math.cos(math.pi * step / num_steps)) for step in range(num_steps)]
    counts: list[int] = []
    for before, after in itertools.pairwise(curve):
        counts.append(min(round(num_tokens * (before - after)), num_tokens - sum(counts)))
    return [*counts, num_tokens - sum(counts)]


def linear(num_steps: int, num_tokens: int) -> list[int]:
    """About equally many in each step, the larger numbers first; at most `num_tokens` steps."""
    ends = np.linspace(0, num_tokens, num_steps + 1).astype(np.int64)
    return sorted((count for count in np.diff(ends).tolist() if count), reverse=True)


def token_counts(schedule: str | Sequence[int], num_steps: int, num_tokens: int) -> list[int]:
    """Tokens of each step, `num_tokens` together.

    Args:
        schedule: cosine, linear, one (a token a step), or the numbers themselves, of which the first are left out
            where less is asked for than they make.
        num_steps: Not read by one, nor with numbers.
        num_tokens: Of all steps.

    Raises:
        ConfigError: The numbers make fewer tokens.
    """
    if not num_tokens:
        return []
    if schedule == "cosine":
        return cosine(num_steps, num_tokens)
    if schedule == "linear":
        return linear(num_steps, num_tokens)
    if schedule == "one":
        return [1] * num_tokens
    counts = [int(count) for count in schedule]
    if sum(counts) < num_tokens:
        raise ConfigError(
            f"schedule {counts} makes {sum(counts)} tokens, but {num_tokens} are asked for\n  give numbers that add up"
        )
    # As if the first steps had made what is not asked for.
    left = np.diff(np.maximum(np.cumsum([0, *counts]) - (sum(counts) - num_tokens), 0))
    return [count for count in left.tolist() if count]


def temperatures(schedule: str, temperature: float, counts: Sequence[int]) -> list[float]:
    """Of each of S steps with so many tokens.

    Args:
        schedule: constant; linear: falls with what is left to do; onex:MIN:POWER: falls to MIN as 1 / x ** POWER does.
        temperature: Of the first step.
        counts: (S,).

    Raises:
        ConfigError: There is no such schedule.
    """
    total = sum(counts)
    done = np.cumsum([0, *counts])
    if schedule == "constant":
        return [max(temperature, COLDEST)] * len(counts)
    if schedule == "linear":
        return [max(temperature * (1 - before / total), COLDEST) for before in done[:-1].tolist()]
    lowest, power = decay(schedule)
    height = np.linspace(1, _REACH, max(total, 2)) ** -power
    height = (height - height[-1]) / (height[0] - height[-1])
    return [
        max(lowest + (temperature - lowest) * (1 - after / total) * float(height[step]), COLDEST)
        for step, after in enumerate(done[1:].tolist())
    ]


def decay(schedule: str) -> tuple[float, float]:
    """MIN and POWER of onex:MIN:POWER.

    Raises:
        ConfigError: It is written otherwise.
    """
    lowest, power = -1.0, 0.0
    with contextlib.suppress(ValueError):
        if match := _DECAY.fullmatch(schedule):
            lowest, power = float(match[1]), float(match[2])
    if lowest < 0 or power <= 0:
        raise ConfigError(
            f"there is no temperature_schedule {schedule!r}\n"
            "  there are constant, linear and onex:MIN:POWER, MIN at least 0 and POWER above 0, as in onex:0.5:0.5"
        )
    return lowest, power
