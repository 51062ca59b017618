"""The recipe as the rest of the house sees it. Torch-free to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrainkit.recipes.fourm.config import FourMRun
from pretrainkit.recipes.fourm.presets import PRESETS
from pretrainkit.training.recipe import Recipe, Split

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.data.source import BatchSource
    from pretrainkit.recipes.fourm.objective import FourMObjective


class FourM(Recipe):
    """Some tokens of many modalities given, others asked for."""

    name = "fourm"
    summary = "4M: any modality from any other, by masked modelling of their tokens."

    @property
    def config_class(self) -> type[FourMRun]:
        return FourMRun

    @property
    def presets(self) -> Mapping[str, Callable[[], FourMRun]]:
        return PRESETS

    def bind(self, config: FourMRun) -> FourMRun:
        from pretrainkit.recipes.fourm.source import bind

        return bind(config.in_steps())

    def open_data(self, config: FourMRun, split: Split) -> BatchSource:
        from pretrainkit.recipes.fourm.source import open_source

        return open_source(config, split)

    def tokenizer_folder(self, config: FourMRun) -> Path | None:
        """That of the sequences; none without them."""
        return None if config.data.tokenizer is None else Path(config.data.tokenizer)

    def with_tokenizer(self, config: FourMRun, tokenizer: Path) -> FourMRun:
        return config.model_copy(update={"data": config.data.model_copy(update={"tokenizer": str(tokenizer)})})

    def has_own_vocabulary(self, config: FourMRun) -> bool:
        return all(modality.kind != "sequence" for modality in config.model.modalities)

    def build_model(self, config: FourMRun) -> nn.Module:
        from pretrainkit.recipes.fourm.model import build

        return build(config.model)

    def build_objective(self, config: FourMRun) -> FourMObjective:
        from pretrainkit.recipes.fourm.objective import FourMObjective

        return FourMObjective(config)


RECIPE = FourM()
