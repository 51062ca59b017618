"""How much of each modality is given and asked for: mixtures of Dirichlet distributions. Torch-free.

A component says for each modality how strongly it is wanted among inputs and targets; 0 is never. Names may leave out
the resolution (`rgb` for `rgb@224`), and `*` stands for all that are not named.

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
"""By number."""
ALL = "*"


class Component(Config):
    """One way of dividing the slots of an example among modalities."""

    weight: PositiveFloat = 1.0
    """How often it is drawn, relative to the others."""
    inputs: dict[str, NonNegativeFloat] = Field(default={ALL: 1.0})
    """Concentration of the Dirichlet distribution of inputs by modality: small values give few modalities at a time,
    large ones equal parts. Unnamed ones: that of *, or 0, which is never."""
    targets: dict[str, NonNegativeFloat] = Field(default={ALL: 1.0})
    """The same for targets. * leaves out what can be no target."""
    keep: dict[str, Keep] = Field(default={})
    """Of sequences among the inputs, the share of tokens that is kept before the budget cuts: random: uniform in
    [0, 1]. all: everything. binary: all or nothing. Unnamed ones: that of *, or random."""


def _only(concentration: float, *names: str, others: float = 0.0) -> dict[str, float]:
    return {**dict.fromkeys(names, concentration), ALL: others}


def _spread(**more: object) -> tuple[Component, ...]:
    """Return components of symmetric inputs and targets, from one modality at a time to all."""
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
"""The published mixtures, by name. Their targets at 0 for pixels and vectors follow from what those are; the original
gave `t5_caption` tokens of the target's budget, which were lost."""


def _published(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in PUBLISHED:
        raise ValueError(f"there is no mixture {value!r}; published ones: {', '.join(PUBLISHED)}")
    return PUBLISHED[value]


Mixture = Annotated[
    tuple[Component, ...], BeforeValidator(_published, json_schema_input_type=str | tuple[Component, ...])
]
"""In a config: components, or the name of a published mixture."""


class Bound:
    """A mixture for given modalities, as arrays."""

    def __init__(self, mixture: Sequence[Component], modalities: Sequence[Modality], present: Sequence[str]) -> None:
        """`modalities`: of the model, in order. `present`: names of those that the data have. Raises ConfigError where
        a name fits no modality of the model, an input is asked to be a target, or a component wants nothing."""
        self.weights_K = np.array([component.weight for component in mixture])
        has = np.array([modality.name in present for modality in modalities])
        is_input = np.array([modality.is_input for modality in modalities]) & has
        is_target = np.array([modality.is_target for modality in modalities]) & has
        self.inputs_KD = _table([c.inputs for c in mixture], modalities, 0.0) * is_input
        self.targets_KD = _table([c.targets for c in mixture], modalities, 0.0) * is_target
        keeps = [{name: KEEPS.index(keep) for name, keep in c.keep.items()} for c in mixture]
        self.keep_KD = _table(keeps, modalities, KEEPS.index("random")).astype(np.int64)
        problems = [
            f"component {number} of the mixture names {name!r}, which is no modality of the model\n"
            f"  it has {', '.join(m.name for m in modalities)}"
            for field in ("inputs", "targets", "keep")
            for number, component in enumerate(mixture)
            for name in getattr(component, field)
            if name != ALL and all(name not in (m.name, m.key) for m in modalities)
        ]
        for number, component in enumerate(mixture):
            problems += [
                f"component {number} of the mixture wants {modality.name} as {what}, which it cannot be\n"
                "  leave it out there"
                for modality in modalities
                for row, is_possible, what in (
                    (component.inputs, modality.is_input, "an input"),
                    (component.targets, modality.is_target, "a target"),
                )
                if row.get(modality.name, row.get(modality.key, 0.0)) and not is_possible
            ]
            if not self.inputs_KD[number].any() or not self.targets_KD[number].any():
                problems.append(
                    f"component {number} of the mixture wants no inputs or no targets of {', '.join(present)}\n"
                    "  give it a modality of these data, or leave it out"
                )
        if not mixture:
            problems.append("the mixture has no component\n  give one, such as {inputs: {'*': 1}, targets: {'*': 1}}")
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)))


def _table(rows: Sequence[Mapping[str, float]], modalities: Sequence[Modality], default: float) -> NDArray[np.float64]:
    """(K, D): a whole name goes before one without the resolution, and that before `*`."""
    table = [[row.get(m.name, row.get(m.key, row.get(ALL, default))) for m in modalities] for row in rows]
    return np.array(table, np.float64).reshape(len(rows), len(modalities))
