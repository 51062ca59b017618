"""What a run is fed: the settings that all recipes have. Torch-free."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, NonNegativeInt, PositiveFloat, PositiveInt

from pretrainkit.config.base import Config
from pretrainkit.config.paths import IsPath


class SourceConfig(Config):
    """One component of a mixture. On the command line a plain path stands for {path: PATH}."""

    path: Annotated[str, IsPath()]
    """Folder of token shards, as written by `pretrainkit tokenizer encode`."""
    weight: PositiveFloat | None = None
    """Share of the examples of a batch, relative to the other components; null: proportional to size."""


_COMMA = re.compile(r",(?![^\[]*\])(?![^{]*\})")
"""Those outside of the brackets and braces of paths of tar files."""


def as_mappings(value: object, key: str) -> object:
    """Read what people write for a list of mappings: one text, several with commas between, or a list of texts and
    mappings. A text stands for {key: text}."""
    if isinstance(value, str):
        value = [part for part in _COMMA.split(value) if part]
    if isinstance(value, (list, tuple)):
        return [{key: item} if isinstance(item, str) else item for item in value]
    return value


def as_sources(value: object) -> object:
    """Read what people write for data: paths, or nothing, as in data.valid=null on the command line."""
    return () if value is None else as_mappings(value, "path")


Sources = Annotated[
    tuple[SourceConfig, ...], BeforeValidator(as_sources, json_schema_input_type=str | tuple[str | SourceConfig, ...])
]


def as_names(value: object) -> object:
    """Names separated by commas, or a list of them."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def as_folders(value: object) -> object:
    """A mapping, or one folder for `all`."""
    return {"all": value} if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(as_names, json_schema_input_type=str | tuple[str, ...])]
TaskFolders = Annotated[
    dict[str, str], IsPath(), BeforeValidator(as_folders, json_schema_input_type=str | dict[str, str])
]


class DataConfig(Config):
    """What the model is fed. Recipes add their own fields."""

    held_out_fields: ClassVar[tuple[str, ...]] = ("valid",)
    """Fields that say what is held out; `evaluate --data` comes in the place of all of them."""

    train: Sources = ()
    """Token shards to train on: one path, several separated by commas, or a list of {path, weight}."""
    valid: Sources = ()
    """Held-out token shards. Documents that also occur in `train` are refused."""
    order: Literal["shuffle", "lanes", "sequential"] = "shuffle"
    """shuffle: every example independently permuted, anew each epoch. lanes: documents permuted, and each row of the
    batch reads on in its document from step to step (Sabertooth). sequential: as stored."""
    batch_size: PositiveInt
    """Examples of one step over all ranks and microbatches."""
    microbatch_size: PositiveInt | None = None
    """Examples of one forward pass on one rank; null: all of the rank's examples at once."""
    num_epochs: PositiveFloat | None = None
    """With num_steps null: train for so many passes over the data. Else: refuse a run whose num_steps needs more than
    so many; null: no limit."""
    prefetch: NonNegativeInt = 2
    """Steps to prepare ahead in a background thread; 0: none."""

    @property
    def loader_workers(self) -> tuple[Literal["threads", "processes"], int]:
        """What prepares batches ahead, and how many; 0: one thread. Recipes whose examples take long to make say so."""
        return "threads", 0
