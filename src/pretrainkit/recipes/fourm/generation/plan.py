"""What is generated, in which order and how: plans; how many tokens an image gets in each step, and how hot they are
drawn; which modality of a model a name means. Torch-free.

Dimensions: S steps.
Sources: Chang et al. 2022 (MaskGIT), https://arxiv.org/abs/2202.04200, cosine schedule; released code of 4M
(https://arxiv.org/abs/2312.06647) for everything else.
"""

import itertools
import math
import re
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from pretrainkit.config.base import Config
from pretrainkit.errors import ConfigError, InputError
from pretrainkit.recipes.fourm.modality import Modality

COLDEST = 1e-9
"""Below any temperature that matters: the likeliest token is taken."""
_NUMBER = r"(\+?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_DECAY = re.compile(rf"onex:{_NUMBER}:{_NUMBER}")
_REACH = 100.0
Scheme = Literal["maskgit", "roar", "autoregressive"]
_OF_TOKENS = ("tok_", "map_")


def cosine(num_steps: int, num_tokens: int) -> list[int]:
    """Give few tokens to the first and the last steps. Where steps are many, the first get none, and maybe the last:
    each is rounded by itself, and never more than are left."""
    curve = [0.5 * (1 + math.cos(math.pi * step / num_steps)) for step in range(num_steps)]
    counts: list[int] = []
    for before, after in itertools.pairwise(curve):
        counts.append(min(round(num_tokens * (before - after)), num_tokens - sum(counts)))
    return [*counts, num_tokens - sum(counts)]


def linear(num_steps: int, num_tokens: int) -> list[int]:
    """Give about equally many to each step, the larger numbers first; at most `num_tokens` steps."""
    ends = np.linspace(0, num_tokens, num_steps + 1).astype(np.int64)
    return sorted((count for count in np.diff(ends).tolist() if count), reverse=True)


def token_counts(schedule: str | Sequence[int], num_steps: int, num_tokens: int) -> list[int]:
    """Return the tokens of each step, `num_tokens` together. `schedule`: cosine, linear, one (a token a step), or the
    numbers themselves, of which the first are left out where less is asked for than they make. `num_steps` is not read
    by one, nor with numbers. Raises ConfigError where the numbers make fewer tokens."""
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
    """Return the temperatures of S steps with `counts` tokens each. `schedule`: constant; linear: falls with what is
    left to do; onex:MIN:POWER: falls to MIN as 1 / x ** POWER does. `temperature`: of the first step. Raises
    ConfigError where there is no such schedule."""
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
    """Return MIN and POWER of onex:MIN:POWER. Raises ConfigError where it is written otherwise."""
    match = _DECAY.fullmatch(schedule)
    if match is None or not float(match[2]):
        raise ConfigError(
            f"there is no temperature_schedule {schedule!r}\n"
            "  there are constant, linear and onex:MIN:POWER, MIN at least 0 and POWER above 0, as in onex:0.5:0.5"
        )
    return float(match[1]), float(match[2])


class TargetConfig(Config):
    """One modality to generate."""

    modality: str
    """Its name; the resolution may be left out where there is only one, and `rgb` stands for the tokens of `rgb`."""
    scheme: Scheme | None = None
    """maskgit: of all open places of an image, those are filled whose tokens are surest. roar: places in random order,
    only these are computed. autoregressive: token after token, for sequences, which know no other. null: roar, and
    autoregressive for sequences."""
    num_steps: PositiveInt = 8
    """Images only: steps in which the places are filled."""
    schedule: Literal["cosine", "linear", "one"] | tuple[PositiveInt, ...] | None = None
    """Images only: tokens in each step. one: one token a step; or numbers that add up to the tokens of the image. null:
    cosine with maskgit, else linear."""
    temperature: NonNegativeFloat = 1.0
    """Logits are divided by it; 0: always the likeliest token."""
    temperature_schedule: str = "constant"
    """Images only: constant; linear: falls with what is left; onex:MIN:POWER: falls to MIN like 1 / x ** POWER."""
    top_k: Annotated[float, Field(ge=0)] = 0
    """Draw from so many likeliest tokens, or, below 1, from this share of the vocabulary; 0: from all."""
    top_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Draw from the likeliest tokens that have more than this probability together; 0: from all."""
    take: Literal["draw", "mean", "median"] = "draw"
    """Images of depth and colours without an image tokenizer only, whose tokens are numbers. draw: a token at random by
    its probability. mean, median: the token in the middle of what could be drawn, nearest to the truth in square or
    absolute error; with num_steps=1 an estimate rather than an invention."""
    guidance: float | dict[str, float] = 1.0
    """How much the conditions count: 1 as they are, 0 not at all, above 1 more than that (classifier-free guidance).
    By name of a condition: a weight for each, and what is not named is always seen."""
    guided_by: tuple[str, ...] | None = None
    """Names of the conditions that `guidance` is about, where it is one number; null: all that were given."""
    confidence_noise: NonNegativeFloat = 0.0
    """maskgit only: Gumbel noise on the logarithm of how sure a token is, so that places are filled less greedily."""
    max_tokens: PositiveInt | None = None
    """Sequences only: at most so many tokens; null: as many as the modality has."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.scheme in ("roar", "autoregressive") and self.confidence_noise:
            raise ValueError(f"confidence_noise is only read by scheme maskgit, not by {self.scheme}; leave it out")
        if self.scheme == "roar" and self.schedule == "cosine":
            raise ValueError("scheme roar fills about equally many places in each step\n  set schedule=linear")
        if self.top_k > 1 and self.top_k != int(self.top_k):
            raise ValueError(f"top_k {self.top_k} is neither a number of tokens nor a share below 1; round it")
        if self.take != "draw" and not self.temperature:
            raise ValueError(
                f"take {self.take} is that of the probabilities, of which temperature 0 leaves the likeliest token "
                "alone\n  set temperature=1"
            )
        if isinstance(self.guidance, dict) and self.guided_by is not None:
            raise ValueError("guided_by is not read where guidance has a weight for each condition; leave it out")
        if self.temperature_schedule not in ("constant", "linear"):
            try:
                decay(self.temperature_schedule)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return self


class GenerationPlan(Config):
    """A chain of targets: each is an input of those behind it."""

    targets: tuple[TargetConfig, ...]
    """In this order."""
    grow_conditions: bool = False
    """Generated images join the conditions that guide later targets."""
    seed: NonNegativeInt = 0
    """Of all draws, which depend on it and on the number of the example alone."""
    num_variations: PositiveInt = 1
    """Different results for each example."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [target.modality for target in self.targets]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is a target twice; leave out all but one")
        return self


def inputs_named(name: str, modalities: Sequence[Modality]) -> list[Modality]:
    """Return the inputs of a model that a name stands for, several only where they differ in resolution; a name at
    another resolution than the model has stands for its own."""
    inputs = [modality for modality in modalities if modality.is_input]
    return _named(name, inputs) or [modality for modality in inputs if modality.key == name.partition("@")[0]]


def _named(name: str, modalities: Sequence[Modality]) -> list[Modality]:
    """Look in this order for: the whole name; without the resolution; the tokens of it, as `tok_rgb` of `rgb`; what is
    made of a folder of that name."""
    ways = (
        lambda modality: modality.name == name,
        lambda modality: modality.key == name,
        lambda modality: modality.key in tuple(start + name for start in _OF_TOKENS),
        lambda modality: modality.path == name,
    )
    return next((found for way in ways if (found := [one for one in modalities if way(one)])), [])


def the_target(name: str, modalities: Sequence[Modality]) -> Modality | None:
    """Return the target that a name means; None: this model has none. Raises InputError where several could be
    meant."""
    found = _named(name, [modality for modality in modalities if modality.is_target])
    if len(found) > 1:
        raise InputError(
            f"--to {name}: that may be {' or '.join(modality.name for modality in found)}\n  give the whole name"
        )
    return found[0] if found else None


def require_target(name: str, models: Sequence[Sequence[Modality]]) -> tuple[int, Modality]:
    """Return the target, and the number of the first model of a chain that has it. Raises InputError where none has it,
    or several of its modalities could be meant."""
    for number, modalities in enumerate(models):
        if (found := the_target(name, modalities)) is not None:
            return number, found
    everything = [modality for modalities in models for modality in modalities]
    only_read = [modality.name for modality in _named(name, everything)]
    known = ", ".join(dict.fromkeys(modality.name for modality in everything if modality.is_target))
    what = f"{only_read[0]} is an input only" if only_read else "the model has no modality of that name"
    raise InputError(f"--to {name}: {what}\n  targets are {known}")


def require_inputs(name: str, models: Sequence[Sequence[Modality]]) -> list[Modality]:
    """Return the inputs that the name stands for, of all models of a chain. Raises InputError where none reads it."""
    if found := [modality for modalities in models for modality in inputs_named(name, modalities)]:
        return found
    everything = [modality for modalities in models for modality in modalities]
    known = ", ".join(dict.fromkeys(modality.name for modality in everything if modality.is_input))
    is_target = " as an input" if _named(name, everything) else ""
    raise InputError(f"--from {name}: the model reads no modality of that name{is_target}\n  inputs are {known}")
