"""The recipe as the rest of the house sees it. Torch-free to import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrainkit.errors import ConfigError
from pretrainkit.recipes.t5.config import T5Run
from pretrainkit.recipes.t5.presets import PRESETS
from pretrainkit.training.recipe import DataCheck, Evaluator, Recipe, Split

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.data.order import Order
    from pretrainkit.data.source import BatchSource, Records
    from pretrainkit.dist.env import World
    from pretrainkit.recipes.t5.objective import T5Objective
    from pretrainkit.training.precision import Precision


class T5(Recipe):
    """Texts from texts."""

    name = "t5"
    summary = "T5, mT5, ByT5 and umT5: text-to-text models from span corruption and from tasks."

    @property
    def config_class(self) -> type[T5Run]:
        return T5Run

    @property
    def presets(self) -> Mapping[str, Callable[[], T5Run]]:
        return PRESETS

    def bind(self, config: T5Run) -> T5Run:
        from pretrainkit.recipes.t5.source import bind

        return bind(config)

    def open_data(self, config: T5Run, split: Split) -> BatchSource:
        from pretrainkit.recipes.t5.source import open_source

        return open_source(config, split)

    def check_data(
        self,
        config: T5Run,
        source: BatchSource,
        summary: Mapping[str, Any],
        records: Callable[[int], Records],
        num: int,
    ) -> DataCheck:
        from pretrainkit.recipes.t5.data_check import check_data
        from pretrainkit.recipes.t5.source import DenoisingSource
        from pretrainkit.recipes.t5.task_source import TaskBatches

        assert isinstance(source, (DenoisingSource, TaskBatches))
        return check_data(config, source, summary["mixture"], records, num)

    def build_order(self, config: T5Run, source: BatchSource) -> Order:
        """Over the components of the source: each folder of shards with each denoiser."""
        from pretrainkit.data.order import Order
        from pretrainkit.recipes.t5.source import DenoisingSource
        from pretrainkit.recipes.t5.task_source import TaskBatches

        assert isinstance(source, (DenoisingSource, TaskBatches))
        data = config.data
        if data.order == "lanes":
            raise ConfigError("data.order=lanes needs examples that come from documents\n  use data.order=shuffle")
        return Order(
            source.sizes, weights=source.weights, mode=data.order, seed=config.seed, batch_size=data.batch_size
        )

    @property
    def held_out_fields(self) -> tuple[str, ...]:
        return ("valid", "task")

    def build_evaluator(self, config: T5Run, world: World, precision: Precision) -> Evaluator | None:
        from pretrainkit.recipes.t5.held_out import build_evaluator

        return build_evaluator(config, world, precision)

    def tokenizer_folder(self, config: T5Run) -> Path | None:
        """Beside the token shards. Tasks bring their vocabularies themselves."""
        return super().tokenizer_folder(config) if config.data.train else None

    def build_model(self, config: T5Run) -> nn.Module:
        from pretrainkit.recipes.t5.model import build

        return build(config.model)

    def build_objective(self, config: T5Run) -> T5Objective:
        from pretrainkit.recipes.t5.objective import T5Objective
        from pretrainkit.recipes.t5.source import training_components

        return T5Objective(config, training_components(config))

    def sample(self, config: T5Run, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
        from pretrainkit.recipes.t5.sample import sample

        return list(sample(config, model, source, num))

    def baselines(self, config: T5Run) -> dict[str, float]:
        """The cross-entropy of guessing targets by frequency, and of guessing blindly, in nats per token."""
        from pretrainkit.recipes.t5.baseline import uniform_loss, unigram_loss

        return {"unigram_loss": unigram_loss(config), "uniform_loss": uniform_loss(config)}

    @property
    def huggingface_types(self) -> tuple[str, ...]:
        return ("t5", "mt5", "umt5")

    def export_huggingface(self, config: T5Run, model: nn.Module, tokenizer: Path | None, out: Path) -> None:
        from pretrainkit.recipes.t5.convert import write_huggingface

        write_huggingface(model.state_dict(), config.model, out, tokenizer=tokenizer)

    def import_huggingface(self, folder: Path) -> tuple[T5Run, Mapping[str, Any]]:
        """The config is that of t5/1.1-base with the model of the folder; the data is missing."""
        from pretrainkit.recipes.t5.convert import read_huggingface

        model, state = read_huggingface(folder)
        return PRESETS["1.1-base"]().model_copy(update={"model": model}), state


RECIPE = T5()
