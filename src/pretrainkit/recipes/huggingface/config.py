"""Settings of an encoder of transformers. This module does not import torch."""

from typing import Any, Literal

from pydantic import PositiveInt

from pretrainkit.config.base import Config
from pretrainkit.training.data_config import DataConfig
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.run import RunConfig


class HuggingFaceModelConfig(Config):
    """Everything that transformers needs to build the encoder without its original folder."""

    architecture: dict[str, Any]
    """Contents of the encoder's config.json."""
    max_positions: PositiveInt | None
    """Maximum number of tokens of an example, with control tokens; null: no limit."""
    second_type: Literal[0, 1] = 1
    """Token type of the second text of a pair, from the tokenizer; the first text has type 0."""
    drawn: tuple[str, ...] = ()
    """Names of the layers between the encoder and its classifier that have no weights in the folder. Fine-tuning
    initializes them randomly."""


class HuggingFaceObjectiveConfig(Config):
    """Empty: this recipe only provides encoders to other recipes."""


class HuggingFaceRun(RunConfig):
    """Config of an encoder of transformers, which other recipes fine-tune."""

    recipe: Literal["huggingface"] = "huggingface"
    """Name of the recipe this config belongs to."""
    num_steps: PositiveInt | None = None
    """Unused: this recipe itself trains nothing."""
    model: HuggingFaceModelConfig
    """The encoder."""
    objective: HuggingFaceObjectiveConfig = HuggingFaceObjectiveConfig()
    """Unused: this recipe itself trains nothing."""
    data: DataConfig = DataConfig(batch_size=1)
    """Unused: this recipe itself trains nothing."""
    optimizer: OptimizerConfig = OptimizerConfig(peak_lr=1e-4)
    """Unused: this recipe itself trains nothing."""
