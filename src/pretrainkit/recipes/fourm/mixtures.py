"""Mixtures of Dirichlet distributions, which divide input and target budgets among modalities.

This module does not import torch.

A component has a concentration for each modality among inputs and targets; with 0 the modality never gets tokens. Names
may leave out the resolution (`rgb` for `rgb@224`), and `*` means all modalities that are not named.

Dimensions: K components, D modalities.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PositiveFloat

from pretrainkit.config.base import Config
from pretrainkit.config.fields import NonNegativeFloat
from pretrainkit.errors import ConfigError
from pretrainkit.recipes.fourm.modality import Modality

Keep = Literal["random", "all", "binary"]
KEEPS: tuple[Keep, ...] = ("random", "all", "binary")
"""Values of `keep` by the number that represents them in arrays."""
ALL = "*"


class Component(Config):
    """One way of dividing the slots of an example among modalities."""

    weight: PositiveFloat = 1.0
    """Frequency of the component, relative to the others."""
    inputs: dict[str, NonNegativeFloat] = Field(default={ALL: 1.0})
    """Concentration of the Dirichlet distribution of inputs by modality. Small values choose few modalities at a time,
    large values give equal shares. Modalities that are not named have the value of *, or 0, which means never."""
    targets: dict[str, NonNegativeFloat] = Field(default={ALL: 1.0})
    """Concentrations of targets by modality. * leaves out modalities that cannot be targets."""
    keep: dict[str, Keep] = Field(default={})
    """Share of tokens that input sequences keep before the budget limits them, by modality. random: uniform in [0, 1].
    all: all tokens. binary: all tokens or none. Modalities that are not named have the value of *, or random."""


def _only(concentration: float, *names: str, others: float = 0.0) -> dict[str, float]:
    return {**dict.fromkeys(names, concentration), ALL: others}


def _spread(**more: object) -> tuple[Component, ...]:
    """Return components with symmetric inputs and targets, from one modality at a time to all modalities."""
    return tuple(
        Component.model_validate({"inputs": _only(0.0, others=alpha), "targets": _only(0.0, others=alpha), **more})
        for alpha in (0.01, 0.1, 1.0, 10.0)
    )


_BINARY_PALETTE: dict[str, Keep] = {"color_palette": "binary"}
_HALF = {ALL: 0.5}

PUBLISHED: dict[str, tuple[Component, ...]] = {
    "mod7-all2all-rgb2all": (
        Component(inputs=_only(1000.0, "rgb"), targets=_HALF),
        Component(inputs=_HALF, targets=_HALF),
    ),
    "mod7-all2all-rgb2dense": (
        Component(inputs=_only(1000.0, "rgb"), targets=_only(0.0, "caption", "det", others=0.5)),
        Component(inputs=_HALF, targets=_HALF),
    ),
    "mod7-all2allmix-rgb2all-capbias": (
        *_spread(),
        Component(inputs=_only(1000.0, "rgb"), targets=_HALF),
        Component(inputs=_only(5.0, "caption", others=0.05), targets=_HALF, keep={"caption": "all"}),
    ),
    "mod7-caption-bias": (
        Component(inputs=_only(5.0, "caption", others=0.05), keep={"caption": "all"}),
        Component(inputs=_only(0.0, others=0.2)),
        Component(inputs=_only(0.0, others=1.0)),
    ),
    "mod7-superres": (
        Component(
            inputs=_only(5.0, "tok_rgb@224", "tok_rgb@448", others=0.05),
            targets=_only(5.0, "tok_rgb@448", others=0.05),
        ),
        Component(inputs=_only(5.0, "caption", others=0.05), keep={"caption": "all"}),
        Component(inputs=_only(0.0, others=0.2)),
        Component(inputs=_only(0.0, others=1.0)),
    ),
    "mod21-all2allmix-rgb2all-capT5bias": (
        *_spread(keep=_BINARY_PALETTE),
        Component(inputs=_only(1000.0, "rgb"), targets=_HALF, keep=_BINARY_PALETTE),
        Component(
            weight=0.5,
            inputs={"caption": 5.0, "t5_caption": 0.0, ALL: 0.05},
            targets=_only(0.0, "caption", others=0.5),
            keep={**_BINARY_PALETTE, "caption": "all"},
        ),
        Component(
            weight=0.5,
            inputs={"t5_caption": 5.0, "caption": 0.0, ALL: 0.05},
            targets=_HALF,
            keep={**_BINARY_PALETTE, "t5_caption": "all"},
        ),
    ),
}
"""Published mixtures by name. Pixels and vectors never get target tokens, because they are inputs only; the original
gave `t5_caption` a part of the target budget, which was lost."""


def _published(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in PUBLISHED:
        raise ValueError(f"there is no mixture {value!r}; published mixtures are {', '.join(PUBLISHED)}")
    return PUBLISHED[value]


Mixture = Annotated[
    tuple[Component, ...], BeforeValidator(_published, json_schema_input_type=str | tuple[Component, ...])
]
"""Config field of a mixture: components, or the name of a published mixture."""


class Bound:
    """Mixture for the modalities of a model, as arrays."""

    def __init__(self, mixture: Sequence[Component], modalities: Sequence[Modality], present: Sequence[str]) -> None:
        """`modalities`: of the model, in order. `present`: names of the modalities in the data. Raises ConfigError if a
        name matches no modality of the model, if an input-only modality is a target (or the reverse), or if a component
        has no inputs or no targets."""
        self.weights_K = np.array([component.weight for component in mixture])
        is_present = np.array([modality.name in present for modality in modalities])
        is_input = np.array([modality.is_input for modality in modalities]) & is_present
        is_target = np.array([modality.is_target for modality in modalities]) & is_present
        self.inputs_KD = _table([c.inputs for c in mixture], modalities, 0.0) * is_input
        self.targets_KD = _table([c.targets for c in mixture], modalities, 0.0) * is_target
        keeps = [{name: KEEPS.index(keep) for name, keep in c.keep.items()} for c in mixture]
        self.keep_KD = _table(keeps, modalities, KEEPS.index("random")).astype(np.int64)
        problems = [
            f"component {number} of the mixture names {name!r}, which is not a modality of the model\n"
            f"  its modalities are {', '.join(m.name for m in modalities)}"
            for field in ("inputs", "targets", "keep")
            for number, component in enumerate(mixture)
            for name in getattr(component, field)
            if name != ALL and all(name not in (m.name, m.key) for m in modalities)
        ]
        for number, component in enumerate(mixture):
            problems += [
                f"component {number} of the mixture uses {modality.name} as {role}, but it is not {role} of the model\n"
                "  leave it out there"
                for modality in modalities
                for concentrations, is_possible, role in (
                    (component.inputs, modality.is_input, "an input"),
                    (component.targets, modality.is_target, "a target"),
                )
                if concentrations.get(modality.name, concentrations.get(modality.key, 0.0)) and not is_possible
            ]
            if not self.inputs_KD[number].any() or not self.targets_KD[number].any():
                problems.append(
                    f"component {number} of the mixture has no inputs or no targets among {', '.join(present)}\n"
                    "  add a modality of these data, or leave out the component"
                )
        if not mixture:
            problems.append("the mixture has no component\n  add one, such as {inputs: {'*': 1}, targets: {'*': 1}}")
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)))


def _table(rows: Sequence[Mapping[str, float]], modalities: Sequence[Modality], default: float) -> NDArray[np.float64]:
    """Return (K, D) values. A full name has priority over a name without resolution, and both over `*`."""
    table = [[row.get(m.name, row.get(m.key, row.get(ALL, default))) for m in modalities] for row in rows]
    return np.array(table, np.float64).reshape(len(rows), len(modalities))
