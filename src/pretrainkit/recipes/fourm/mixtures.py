"""How much of each modality is given and asked for: mixtures of Dirichlet distributions. Torch-free.

A component says for each modality how strongly it is wanted among inputs and targets; 0 is never. Names may leave out
the resolution (`rgb` for `rgb@224`), and `*` stands for all that are not named.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveFloat

from pretrainkit.config.base import Config
from pretrainkit.config.fields import NonNegativeFloat

Keep = Literal["random", "all", "binary"]
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
    """Symmetric inputs and targets, from one modality at a time to all."""
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


KEEPS: tuple[Keep, ...] = ("random", "all", "binary")
"""By number."""
