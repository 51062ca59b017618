"""Generation plans, schedules of tokens and temperatures per step, and names of modalities.

This module does not import torch.

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
"""Temperature that replaces 0: the most likely token is taken."""
_NUMBER = r"(\+?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_DECAY = re.compile(rf"onex:{_NUMBER}:{_NUMBER}")
_REACH = 100.0
Scheme = Literal["maskgit", "roar", "autoregressive"]
_TOKEN_PREFIXES = ("tok_", "map_")


def cosine(num_steps: int, num_tokens: int) -> list[int]:
    """Return the number of tokens of each step by the cosine schedule: few in the first and the last steps. Each step
    is rounded separately and gets at most the tokens that are left. With many steps the first ones get none, maybe the
    last, too."""
    curve = [0.5 * (1 + math.cos(math.pi * step / num_steps)) for step in range(num_steps)]
    counts: list[int] = []
    for before, after in itertools.pairwise(curve):
        counts.append(min(round(num_tokens * (before - after)), num_tokens - sum(counts)))
    return [*counts, num_tokens - sum(counts)]


def linear(num_steps: int, num_tokens: int) -> list[int]:
    """Return about equal numbers of tokens for each step, larger numbers first; at most `num_tokens` steps."""
    ends = np.linspace(0, num_tokens, num_steps + 1).astype(np.int64)
    return sorted((count for count in np.diff(ends).tolist() if count), reverse=True)


def token_counts(schedule: str | Sequence[int], num_steps: int, num_tokens: int) -> list[int]:
    """Return the number of tokens of each step; their sum is `num_tokens`. `schedule`: cosine, linear, one (one token
    per step), or the numbers themselves. If the numbers add up to more, the first ones are left out. one and numbers
    ignore `num_steps`. Raises ConfigError if the numbers add up to less."""
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
            f"schedule {counts} has {sum(counts)} tokens, but {num_tokens} are needed\n"
            "  use numbers that add up to this"
        )
    # Skip the first steps, as if they had generated the tokens that are known already.
    remaining = np.diff(np.maximum(np.cumsum([0, *counts]) - (sum(counts) - num_tokens), 0))
    return [count for count in remaining.tolist() if count]


def temperatures(schedule: str, temperature: float, counts: Sequence[int]) -> list[float]:
    """Return the temperatures of S steps with `counts` tokens. `schedule`: constant; linear: decreases with the share
    of tokens that are left; onex:MIN:POWER: decreases to MIN like 1 / x ** POWER. `temperature`: of the first step.
    Raises ConfigError if there is no such schedule."""
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
        max(lowest + (temperature - lowest) * (1 - after / total) * float(height[min(step, len(height) - 1)]), COLDEST)
        for step, after in enumerate(done[1:].tolist())
    ]


def decay(schedule: str) -> tuple[float, float]:
    """Return MIN and POWER of onex:MIN:POWER. Raises ConfigError for another form."""
    match = _DECAY.fullmatch(schedule)
    if match is None or not float(match[2]):
        raise ConfigError(
            f"there is no temperature_schedule {schedule!r}\n"
            "  use constant, linear or onex:MIN:POWER with MIN at least 0 and POWER above 0, as in onex:0.5:0.5"
        )
    return float(match[1]), float(match[2])


class TargetConfig(Config):
    """Target of a plan: a modality to generate."""

    modality: str
    """Name of the modality. The resolution may be left out if there is only one; `rgb` means the tokens of `rgb`."""
    scheme: Scheme | None = None
    """Order of generation. maskgit: each step computes all open patches of an image and fills those with the highest
    confidence. roar: a random order; each step computes only the patches that it fills. autoregressive: token by token;
    sequences only, and their only scheme. null: roar for images."""
    num_steps: PositiveInt = 8
    """Images only: number of steps."""
    schedule: Literal["cosine", "linear", "one"] | tuple[PositiveInt, ...] | None = None
    """Images only: number of tokens of each step. cosine, linear, or one (one token per step); or numbers that add up
    to the number of tokens of the image. null: cosine with maskgit, otherwise linear."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature, by which logits are divided; 0: always the most likely token."""
    temperature_schedule: str = "constant"
    """Images only: temperature over steps. constant; linear: decreases with the tokens left; onex:MIN:POWER: decreases
    to MIN like 1 / x ** POWER."""
    top_k: Annotated[float, Field(ge=0)] = 0
    """Draw from the k most likely tokens; a value below 1 is a share of the vocabulary, rounded down; 0: draw from all
    tokens."""
    top_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Draw from the smallest set of most likely tokens whose total probability exceeds this value; 0: from all
    tokens."""
    take: Literal["draw", "mean", "median"] = "draw"
    """Choice of a token; mean and median are only for depth and colours without an image tokenizer, whose tokens
    represent numbers. draw: a random token by probability. mean, median: the token that minimizes the expected squared
    or absolute error; with num_steps=1 the result is an estimate instead of a random sample."""
    guidance: float | dict[str, float] = 1.0
    """Guidance scale (classifier-free guidance): 1 uses the conditions without guidance, 0 ignores them, above 1
    increases their influence. A mapping has a weight for each condition by name; other inputs are always visible."""
    guided_by: tuple[str, ...] | None = None
    """Names of the conditions for `guidance` if it is one number; null: all inputs."""
    confidence_noise: NonNegativeFloat = 0.0
    """maskgit only: scale of Gumbel noise on the log confidence of tokens; it makes the order of patches more
    random."""
    max_tokens: PositiveInt | None = None
    """Sequences only: maximum number of tokens; null: the maximum of the modality."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.scheme in ("roar", "autoregressive") and self.confidence_noise:
            raise ValueError(f"confidence_noise works only with scheme maskgit, not with {self.scheme}; leave it out")
        if self.scheme == "roar" and self.schedule == "cosine":
            raise ValueError("scheme roar fills about the same number of patches in each step\n  set schedule=linear")
        if self.top_k > 1 and self.top_k != int(self.top_k):
            raise ValueError(f"top_k {self.top_k} is neither a number of tokens nor a share below 1; round it")
        if self.take != "draw" and not self.temperature:
            raise ValueError(
                f"take {self.take} needs probabilities, but temperature 0 keeps only the most likely token\n"
                "  set temperature=1"
            )
        if isinstance(self.guidance, dict) and self.guided_by is not None:
            raise ValueError("guided_by has no effect if guidance has a weight for each condition; leave it out")
        if self.temperature_schedule not in ("constant", "linear"):
            try:
                decay(self.temperature_schedule)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return self


class GenerationPlan(Config):
    """Plan: a chain of targets, each of which is an input of the later ones."""

    targets: tuple[TargetConfig, ...]
    """Targets in the order of generation."""
    grow_conditions: bool = False
    """Add generated images to the guidance conditions of later targets."""
    seed: NonNegativeInt = 0
    """Seed of all random draws. They also depend on the number of the example."""
    num_variations: PositiveInt = 1
    """Number of different results for each example."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [target.modality for target in self.targets]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"{', '.join(repeated)} is a target more than once; keep one of them")
        return self


def inputs_named(name: str, modalities: Sequence[Modality]) -> list[Modality]:
    """Return the inputs of a model with this name; several inputs differ only in resolution. A name with a resolution
    that the model lacks means the resolutions that it has."""
    inputs = [modality for modality in modalities if modality.is_input]
    return _named(name, inputs) or [modality for modality in inputs if modality.key == name.partition("@")[0]]


def _named(name: str, modalities: Sequence[Modality]) -> list[Modality]:
    """Return the modalities with this name. The first match counts: the full name; the name without resolution; tokens
    of that name, such as `tok_rgb` for `rgb`; the name of the modality's folder."""
    matchers = (
        lambda modality: modality.name == name,
        lambda modality: modality.key == name,
        lambda modality: modality.key in tuple(prefix + name for prefix in _TOKEN_PREFIXES),
        lambda modality: modality.path == name,
    )
    return next((matches for matcher in matchers if (matches := [m for m in modalities if matcher(m)])), [])


def the_target(name: str, modalities: Sequence[Modality]) -> Modality | None:
    """Return the target with this name; None: this model has no such target. Raises InputError if the name is
    ambiguous."""
    matches = _named(name, [modality for modality in modalities if modality.is_target])
    if len(matches) > 1:
        raise InputError(
            f"--to {name} is ambiguous: {' or '.join(modality.name for modality in matches)}\n  use the full name"
        )
    return matches[0] if matches else None


def require_target(name: str, models: Sequence[Sequence[Modality]]) -> tuple[int, Modality]:
    """Return the index of the first model of a chain that has the target, and the target. Raises InputError if no model
    has it or if the name is ambiguous."""
    for number, modalities in enumerate(models):
        if (target := the_target(name, modalities)) is not None:
            return number, target
    everything = [modality for modalities in models for modality in modalities]
    only_read = [modality.name for modality in _named(name, everything)]
    known = ", ".join(dict.fromkeys(modality.name for modality in everything if modality.is_target))
    problem = f"{only_read[0]} can only be an input" if only_read else "the model has no modality of that name"
    raise InputError(f"--to {name}: {problem}\n  targets are {known}")


def require_inputs(name: str, models: Sequence[Sequence[Modality]]) -> list[Modality]:
    """Return the inputs with this name in all models of a chain. Raises InputError if no model reads it."""
    if inputs := [modality for modalities in models for modality in inputs_named(name, modalities)]:
        return inputs
    everything = [modality for modalities in models for modality in modalities]
    known = ", ".join(dict.fromkeys(modality.name for modality in everything if modality.is_input))
    is_target = " as an input" if _named(name, everything) else ""
    raise InputError(f"--from {name}: the model reads no modality of that name{is_target}\n  inputs are {known}")
