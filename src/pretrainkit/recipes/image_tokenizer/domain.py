"""What images hold: colours, depth, classes, features of other models. Torch-free.

Source: 4M-21 (https://arxiv.org/abs/2406.09406), appendix on tokenizers: names and channels of the published ones.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, PositiveInt, model_validator

from pretrainkit.config.base import Config

Kind = Literal["colors", "grey", "normals", "mask", "depth", "classes", "features"]


class Domain(Config):
    """What the images of a tokenizer hold, and how they are read."""

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"folder"})

    name: str
    """Of its tokens: those of rgb are the modality tok_rgb."""
    kind: Kind
    """colors: RGB, grey: one channel, both from -1 to 1. normals: directions as colours, whose first component turns
    with a mirrored image. mask: 0 and 1. depth: one channel without scale and offset. classes: numbers, which are
    embedded. features: maps of another model's features, or one vector, in .npy files (C, H, W) or (C,)."""
    num_channels: PositiveInt
    """Of what the encoder reads; of classes the width of their embedding."""
    num_classes: PositiveInt | None = None
    """Of classes only: with one for what has none, which is 255 in the files and 0 in the model, where all others are
    one more."""
    folder: str | None = None
    """Of its files in a data set; "." for files that lie in the data set itself; null: the name."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind == "classes") != (self.num_classes is not None):
            raise ValueError(
                f"domain {self.name!r} is of kind {self.kind!r} with num_classes={self.num_classes}; classes need a "
                "number of them, others have none"
            )
        wanted = {"colors": 3, "grey": 1, "normals": 3, "mask": 1, "depth": 1}.get(self.kind, self.num_channels)
        if self.num_channels != wanted:
            raise ValueError(
                f"domain {self.name!r} of kind {self.kind!r} has {wanted} channels, not "
                f"{self.num_channels} (num_channels)"
            )
        return self

    @property
    def path(self) -> str:
        """Name of its folder in a data set."""
        return self.folder or self.name

    @property
    def num_outputs(self) -> int:
        """Channels that a decoder gives: logits of classes, else channels."""
        return self.num_classes or self.num_channels

    @property
    def is_flat(self) -> bool:
        """Whether its values lie between -1 and 1, as pictures do."""
        return self.kind in ("colors", "grey", "normals")


def _features(name: str, width: int) -> Domain:
    return Domain(name=name, kind="features", num_channels=width)


DOMAINS: Mapping[str, Domain] = {
    domain.name: domain
    for domain in (
        Domain(name="rgb", kind="colors", num_channels=3),
        Domain(name="depth", kind="depth", num_channels=1),
        Domain(name="normal", kind="normals", num_channels=3),
        Domain(name="semseg_coco", kind="classes", num_channels=64, num_classes=134, folder="semseg"),
        Domain(name="canny_edge", kind="grey", num_channels=1),
        Domain(name="sam_mask", kind="mask", num_channels=1),
        _features("CLIP-B16", 512),
        _features("DINOv2-B14", 768),
        _features("ImageBind-H14", 1280),
        _features("DINOv2-B14-global", 768),
        _features("ImageBind-H14-global", 1280),
        _features("human_poses", 207),
    )
}
"""The published ones by name."""


def _named(value: object) -> object:
    if isinstance(value, str):
        if value not in DOMAINS:
            raise ValueError(f"there is no domain {value!r}; there are {', '.join(DOMAINS)}, or give name, kind, …")
        return DOMAINS[value]
    return value


NamedDomain = Annotated[Domain, BeforeValidator(_named, json_schema_input_type=str | Domain)]
"""In a config: a mapping of its fields, or the name of a published one."""
