"""Which samples a run is fed, and what of them is given and asked for. Torch-free."""

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from pretrainkit.config.base import Config
from pretrainkit.config.fields import Rate
from pretrainkit.config.paths import IsPath
from pretrainkit.data.aligned_crops import CropConfig
from pretrainkit.recipes.fourm.mixtures import PUBLISHED, Mixture
from pretrainkit.training.data_config import DataConfig, SourceConfig, as_sources


class MaskingConfig(Config):
    """Which tokens of a sample the encoder sees and which the decoder predicts."""

    num_input_tokens: PositiveInt = 128
    """Slots of the encoder; the most tokens of an example."""
    num_target_tokens: PositiveInt = 128
    """Slots of the decoder; the most tokens of an example."""
    min_input_tokens: PositiveInt | None = None
    """The budget of an example's inputs is uniform from this to num_input_tokens; null: always num_input_tokens."""
    min_target_tokens: PositiveInt | None = None
    """The same for targets."""
    mixture: Mixture = PUBLISHED["mod7-all2all-rgb2all"]
    """How budgets are divided among modalities: components, or the name of a published mixture."""
    unused: Literal["pack", "pad"] = "pack"
    """What becomes of slots that a draw leaves empty, as texts are shorter and images smaller than their budget. pack:
    further draws of the same mixture for the same sample, apart from each other, with what is left as their budget.
    pad: nothing, as in 4M."""
    min_packed_tokens: PositiveInt = 6
    """pack only: no further draw for fewer empty slots than this in the encoder or in the decoder."""
    max_packed: Annotated[int, Field(ge=1, le=255)] = 16
    """pack only: at most so many draws for one sample."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for side in ("input", "target"):
            least, most = getattr(self, f"min_{side}_tokens"), getattr(self, f"num_{side}_tokens")
            if least is not None and least > most:
                raise ValueError(f"min_{side}_tokens {least} is more than num_{side}_tokens {most}; exchange the two")
        return self


class FourMSetConfig(SourceConfig):
    """One data set. On the command line a plain path stands for {path: PATH}."""

    path: Annotated[str, IsPath()]
    """A folder with one folder for each modality, whose files lie in MODALITY/ANY/STEM.EXTENSION; or tar files, one for
    each modality, as in s3://bucket/[rgb,caption,tok_rgb]/shard-{00000..00099}.tar."""
    name: str | None = None
    """In messages; null: the last part of the path."""
    modalities: tuple[str, ...] | None = None
    """Names of those that are used; null: all of the model's that it has."""
    folders: dict[str, str] = Field(default={})
    """Folder of a modality where it is not the usual one, by name: {"tok_semseg@224": "semseg_tokens"}."""
    mixture: Mixture | None = None
    """In place of `masking.mixture`; null: that one."""


_COMMA = re.compile(r",(?![^\[]*\])(?![^{]*\})")
"""Those outside of brackets and braces."""


def _as_sets(value: object) -> object:
    if isinstance(value, str):
        value = [part for part in _COMMA.split(value) if part]
    return as_sources(value)


FourMSets = Annotated[
    tuple[FourMSetConfig, ...],
    BeforeValidator(_as_sets, json_schema_input_type=str | tuple[str | FourMSetConfig, ...]),
]


class FourMDataConfig(DataConfig):
    """What the model is fed: samples whose modalities belong together."""

    train: FourMSets = ()
    """To train on: one path, several separated by commas, or a list of {path, weight, …}."""
    valid: FourMSets = ()
    """Held out; the same kinds of paths."""
    order: Literal["shuffle", "sequential"] = "shuffle"
    """shuffle: every sample independently permuted, anew each epoch. sequential: as stored."""
    tokenizer: Annotated[str | None, IsPath()] = None
    """Folder of the text tokenizer, with sentinels; null only without sequences."""
    crop: CropConfig = CropConfig()
    """Which part of a sample is used."""
    aligned_captions: bool = True
    """Where a sample has as many captions as parts, each part has its own; else one is drawn."""
    min_box_score: Rate = 0.6
    """Boxes that were found with less confidence are left out."""
    max_boxes: PositiveInt | None = None
    """At most so many boxes of a sample, those with the highest scores; null: all."""
    box_order: Literal["distance", "area", "score", "random"] = "distance"
    """Order of boxes: distance of the upper left corner from that of the image, ascending; area or score, descending;
    random."""
    min_box_visibility: Rate = 0.0
    """Boxes of which less than this share lies inside the part that is used are left out."""
    workers: Literal["threads", "processes"] = "threads"
    """What prepares batches ahead."""
    num_workers: NonNegativeInt = 2
    """How many per rank."""

    @property
    def loader_workers(self) -> tuple[Literal["threads", "processes"], int]:
        return self.workers, self.num_workers
