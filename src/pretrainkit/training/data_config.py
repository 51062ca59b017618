"""Data settings that all recipes share. This module does not import torch."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, NonNegativeInt, PositiveFloat, PositiveInt

from pretrainkit.config.base import Config
from pretrainkit.config.paths import IsPath


class SourceConfig(Config):
    """One component of a mixture. On the command line a plain path means {path: PATH}."""

    path: Annotated[str, IsPath()]
    """Folder of token shards, as written by `pretrainkit tokenizer encode`."""
    weight: PositiveFloat | None = None
    """Share of the examples of a batch, relative to the other components; null: proportional to size."""


_COMMA = re.compile(r",(?![^\[]*\])(?![^{]*\})")
"""Commas outside the brackets and braces in paths of tar files."""


def as_mappings(value: object, key: str) -> object:
    """Convert a string, a comma-separated string, or a list of strings and mappings to a list of mappings. A string
    becomes {key: string}."""
    if isinstance(value, str):
        value = [part for part in _COMMA.split(value) if part]
    if isinstance(value, (list, tuple)):
        return [{key: item} if isinstance(item, str) else item for item in value]
    return value


def as_sources(value: object) -> object:
    """Convert paths, or None (data.valid=null on the command line), to sources."""
    return () if value is None else as_mappings(value, "path")


Sources = Annotated[
    tuple[SourceConfig, ...], BeforeValidator(as_sources, json_schema_input_type=str | tuple[str | SourceConfig, ...])
]


def as_names(value: object) -> object:
    """Convert a comma-separated string to a tuple of names; other values do not change."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def as_folders(value: object) -> object:
    """Convert a single folder to {"all": folder}; other values do not change."""
    return {"all": value} if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(as_names, json_schema_input_type=str | tuple[str, ...])]
TaskFolders = Annotated[
    dict[str, str], IsPath(), BeforeValidator(as_folders, json_schema_input_type=str | dict[str, str])
]


class DataConfig(Config):
    """Training and held-out data. Recipes add fields."""

    held_out_fields: ClassVar[tuple[str, ...]] = ("valid",)
    """Fields that define the held-out data; `evaluate data.valid=FOLDER` replaces all of them."""

    train: Sources = ()
    """Token shards to train on: one path, several separated by commas, or a list of {path, weight}."""
    valid: Sources = ()
    """Held-out token shards. Documents that also occur in `train` are refused."""
    order: Literal["shuffle", "lanes", "sequential"] = "shuffle"
    """shuffle: a random order of all examples, different in each epoch. lanes: a random order of documents, where each
    row of the batch continues its document from step to step (Sabertooth). sequential: the stored order."""
    batch_size: PositiveInt
    """Examples of one step over all ranks and microbatches."""
    microbatch_size: PositiveInt | None = None
    """Examples of one forward pass on one rank; null: all of the rank's examples at once."""
    num_epochs: PositiveFloat | None = None
    """If num_steps is null: number of passes over the data to train for. Otherwise: maximum number of passes; a run
    whose num_steps needs more is refused. null: no limit."""
    prefetch: NonNegativeInt = 2
    """Steps to prepare in advance in a background thread; 0: no thread."""

    @property
    def loader_workers(self) -> tuple[Literal["threads", "processes"], int]:
        """Kind and number of workers that prepare batches; 0: one thread. Recipes with slow transforms override it."""
        return "threads", 0
