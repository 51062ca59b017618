"""Base class of recipes. It imports no torch: methods import what they need.

Optional features besides training are in `capabilities`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from pretrainkit.eval.directions import DIRECTIONS
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
    """Return the tokenizer folder of the token shards in the first component of the data."""
    return Path(config.data.train[0].path) / "tokenizer"


class Recipe(ABC, Generic[Run]):
    """One folder of `recipes/`, or a third party's entry point in the group `pretrainkit.recipes`."""

    name: ClassVar[str]
    """First part of preset names: `name/preset`."""
    summary: ClassVar[str]
    """One line for `pretrainkit recipes`."""
    config_class: ClassVar[type[RunConfig]]
    presets: ClassVar[Mapping[str, Callable[[], RunConfig]]]
    """Maps preset names (without the recipe) to functions that return complete configs. Their docstrings describe the
    presets."""
    directions: ClassVar[Mapping[str, str]] = DIRECTIONS
    """Maps patterns of metric names to "rises" or "falls", whichever is better. Runs record it; reports show the best
    values of these metrics."""
    percentages: ClassVar[tuple[str, ...]] = ()
    """Patterns of the names of metrics whose values are in per cent. Runs record it; reports show other accuracies,
    which are in [0, 1], times 100."""
    samples_on_cpu: ClassVar[bool] = False
    """True if `sample` uses the model, or a copy of it, on the CPU; training then continues in parallel."""

    @abstractmethod
    def bind(self, config: Run) -> Run:
        """Fill in settings that depend on the data, such as the vocabulary size. Raises ConfigError or DataError if
        config and data do not match."""

    @abstractmethod
    def open_data(self, config: Run, split: Split) -> BatchSource:
        """Return the examples of a split. "valid" has fixed randomness: every evaluation uses the same masks."""

    def build_order(self, config: Run, source: BatchSource) -> Order:
        """Return the order of the examples of `source` in training. Default: the order set by `data.order`."""
        from pretrainkit.data.order import Order

        data = config.data
        return Order(
            source.sizes,
            weights=source.weights or [component.weight for component in data.train],
            mode=data.order,
            seed=config.seed,
            batch_size=data.batch_size,
            document_sizes=source.document_sizes if data.order == "lanes" else None,
        )

    @abstractmethod
    def build_model(self, config: Run) -> nn.Module:
        """Return the model on the current default device (maybe "meta"), initialized from torch's global generator.

        Its method `blocks()` lists the submodules to compile and shard one by one.
        """

    @abstractmethod
    def build_objective(self, config: Run) -> AnyObjective:
        """Return the objective, which computes the loss terms of a batch. Trainable parameters belong to the model."""

    def sample(self, config: Run, model: nn.Module, source: BatchSource, num: int) -> list[dict[str, Any]]:
        """Return held-out examples for the report: input, prediction and target, each a `Sample` of `training.watch`.
        Default: none."""
        return []

    def baselines(self, config: Run) -> dict[str, float]:
        """Return losses of models that learn only frequencies, as baselines for a run. Default: none."""
        return {}
