"""What every recipe is to the rest of pretrainkit. Torch-free to import: methods import what they need.

What a recipe may do besides training is in `capabilities`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pretrainkit.training.run import RunConfig

if TYPE_CHECKING:
    from torch import nn

    from pretrainkit.data.order import Order
    from pretrainkit.data.source import BatchSource
    from pretrainkit.training.objective import AnyObjective

Run = TypeVar("Run", bound=RunConfig)
"""The config class of a recipe."""
Split = Literal["train", "valid"]


def tokenizer_beside(config: RunConfig) -> Path:
    """The folder of the tokenizer that token shards were made with, of the first component of the data."""
    return Path(config.data.train[0].path) / "tokenizer"


class Recipe(ABC, Generic[Run]):
    """One folder of `recipes/`, or a third party's entry point in the group `pretrainkit.recipes`."""

    name: ClassVar[str]
    """As in preset names: `name/preset`."""
    summary: ClassVar[str]
    """One line for `pretrainkit recipes`."""
    config_class: ClassVar[type[RunConfig]]
    presets: ClassVar[Mapping[str, Callable[[], RunConfig]]]
    """Preset name (without the recipe) to a function that returns a complete config; its docstring describes it."""
    samples_on_cpu: ClassVar[bool] = False
    """Whether the model is on the CPU for `sample`, or a copy of it: then training goes on meanwhile."""

    @abstractmethod
    def bind(self, config: Run) -> Run:
        """Fill in what only the data can say (such as the vocabulary size) and check config against data. Raises
        ConfigError, DataError where they do not fit each other."""

    @abstractmethod
    def open_data(self, config: Run, split: Split) -> BatchSource:
        """The examples of a split. For "valid" with fixed randomness: the same masks at every evaluation."""

    def build_order(self, config: Run, source: BatchSource) -> Order:
        """In which order training goes over the examples of `source`. Default: as `data.order` says."""
        from pretrainkit.data.order import Order

        data = config.data
        return Order(
            source.sizes,
            weights=[component.weight for component in data.train],
            mode=data.order,
            seed=config.seed,
            batch_size=data.batch_size,
            document_sizes=source.document_sizes if data.order == "lanes" else None,
        )

    @abstractmethod
    def build_model(self, config: Run) -> nn.Module:
        """The model on the current default device (maybe "meta"), initialised from torch's global generator.

        It has a method `blocks()`, which lists the submodules to compile and shard one by one.
        """

    @abstractmethod
    def build_objective(self, config: Run) -> AnyObjective:
        """What turns a batch into the terms of the loss. What is learned belongs to the model, not to it."""

    def sample(self, config: Run, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
        """Held-out examples for the report: what the model saw, predicted, and the truth, each a `Sample` of
        `training.watch`. Default: none."""
        return []

    def baselines(self, config: Run) -> dict[str, float]:
        """Losses of models that learn nothing but frequencies, to compare a run with. Default: none."""
        return {}
