"""Which rendered text a run is fed, and how it becomes batches. Torch-free."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from pretrainkit.config.base import Config
from pretrainkit.config.fields import Rate
from pretrainkit.config.paths import IsPath
from pretrainkit.errors import ConfigError
from pretrainkit.training.data_config import DataConfig, Sources


class PixelAugmentConfig(Config):
    """How training text is varied, anew in each epoch and from the key of its row alone. Held-out text is always drawn
    as its renderer says. Empty lists vary nothing."""

    share: Rate = 1.0
    """Share of the rows that are varied."""
    fonts: Annotated[tuple[str, ...], IsPath()] = ()
    """Other main fonts; each is as likely as the renderer's own. Needs rows that are drawn on the way:
    plain text, or `pretrainkit render --text-only`. A row that gets too long loses its end."""
    sizes: tuple[PositiveFloat, ...] = ()
    """Other sizes in points; each is as likely as the renderer's own. Needs rows that are drawn on the way."""
    inks: tuple[str, ...] = ()
    """Other colours of text, names of CSS or #rrggbb; each is as likely as black. The rows must be drawn black on
    white, also as pictures."""
    papers: tuple[str, ...] = ()
    """Other colours behind text; each is as likely as white."""

    @field_validator("inks", "papers")
    @classmethod
    def _are_colors(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from pretrainkit.rendering.colors import parse_color

        for name in names:
            try:
                parse_color(name)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return names


class PixelDataConfig(DataConfig):
    """What the model is fed: text that `pretrainkit render` has drawn or cut into pieces, published rendered sets, or
    plain text that is cut and drawn here."""

    held_out_fields: ClassVar[tuple[str, ...]] = ("valid", "held_out_share")
    train: Sources = ()
    """To train on: one path, several separated by commas, or a list of {path, weight}. A path is a folder of
    `pretrainkit render`, one with parquet files in the layout of the published sets, or text as `pretrainkit corpus`
    reads it, which is cut into pieces once and kept in the cache folder. Without weights every row counts the same."""
    valid: Sources = ()
    """Held out; the same kinds of paths."""
    held_out_share: Annotated[Rate, Field(lt=1)] = 0.0
    """With no `valid`: so much of `train` is held out, in runs of 64 neighbours, the same ones for every seed."""
    temperature: PositiveFloat = 1.0
    """With several paths without weights: shares in proportion to rows ** (1 / temperature). 1: every row counts the
    same; higher: small sets, such as those of rare languages, come more often."""
    augment: PixelAugmentConfig = PixelAugmentConfig()
    """Other fonts, sizes and colours of training text."""
    order: Literal["shuffle", "sequential"] = "shuffle"
    """shuffle: every row independently permuted, anew each epoch. sequential: as stored."""
    renderer: Annotated[str | None, IsPath()] = None
    """Folder of a renderer, as `save_renderer` writes it, a font for a renderer with the published settings, or NAME or
    NAME@REVISION of a model on the hub; null: the renderer that lies in the folders of `train`. Plain text needs it."""
    max_patches: Annotated[int, Field(ge=2)] = 529
    """Patches of a row, the end patch included. No stored row may be longer; plain text is cut to fill it."""
    pad_to: PositiveInt = 1
    """Round the numbers of patches in a microbatch up to a multiple of this, so that few shapes occur (torch.compile);
    1: nothing is padded."""
    min_text_patches: NonNegativeInt = 22
    """Rows with fewer patches before the end patch are left out, in training and evaluation."""
    workers: Literal["threads", "processes"] = "threads"
    """What prepares batches ahead. Text that is drawn on the way gains from processes."""
    num_workers: NonNegativeInt = 2
    """How many per rank."""

    @property
    def loader_workers(self) -> tuple[Literal["threads", "processes"], int]:
        return self.workers, self.num_workers
