"""Settings of an encoder of transformers. Torch-free."""

from typing import Any, Literal

from pydantic import PositiveInt

from pretrainkit.config.base import Config
from pretrainkit.training.data_config import DataConfig
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.run import RunConfig


class HuggingFaceModelConfig(Config):
    """Everything that transformers needs to build the encoder, so that a run does not need the folder any more."""

    architecture: dict[str, Any]
    """The contents of its config.json."""
    max_positions: PositiveInt | None
    """Most tokens of an example, control tokens too; null: any number."""
    second_type: Literal[0, 1] = 1
    """Type of the second text of a pair, as its tokenizer says; the first one's is 0."""
    drawn: tuple[str, ...] = ()
    """Layers between the encoder and its classifier that the folder has no weights for, by name: they are drawn anew
    where the encoder is trained further."""


class HuggingFaceObjectiveConfig(Config):
    """None: this recipe lends its encoders to others."""


class HuggingFaceRun(RunConfig):
    """An encoder of transformers. Nothing is trained under this recipe itself."""

    recipe: Literal["huggingface"] = "huggingface"
    """Name of the recipe this config belongs to."""
    num_steps: PositiveInt | None = None
    """Not read: nothing is trained under this recipe itself."""
    model: HuggingFaceModelConfig
    """The encoder."""
    objective: HuggingFaceObjectiveConfig = HuggingFaceObjectiveConfig()
    """Not read: nothing is trained under this recipe itself."""
    data: DataConfig = DataConfig(batch_size=1)
    """Not read: nothing is trained under this recipe itself."""
    optimizer: OptimizerConfig = OptimizerConfig(peak_lr=1e-4)
    """Not read: nothing is trained under this recipe itself."""
