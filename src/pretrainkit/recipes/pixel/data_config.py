"""Which rendered text a run is fed, and how it becomes batches. Torch-free."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from pretrainkit.config.fields import Rate
from pretrainkit.config.paths import IsPath
from pretrainkit.training.data_config import DataConfig, Sources


class PixelDataConfig(DataConfig):
    """What the model is fed: text that `pretrainkit render` has drawn or cut into pieces, published rendered sets, or
    plain text that is cut and drawn here."""

    train: Sources = ()
    """To train on: one path, several separated by commas, or a list of {path, weight}. A path is a folder of
    `pretrainkit render`, one with parquet files in the layout of the published sets, or text as `pretrainkit corpus`
    reads it, which is cut into pieces once and kept in the cache folder. Without weights every row counts the same."""
    valid: Sources = ()
    """Held out; the same kinds of paths."""
    held_out_share: Annotated[Rate, Field(lt=1)] = 0.0
    """With no `valid`: so much of `train` is held out, in runs of 64 neighbours, the same ones for every seed."""
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
