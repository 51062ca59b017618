"""Evaluation while training, and the tasks that an encoder is tried on. Torch-free."""

from functools import partial
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from pretrainkit.config.base import Config
from pretrainkit.config.fields import NonNegativeFloat
from pretrainkit.config.paths import IsPath
from pretrainkit.training.data_config import as_mappings


class EarlyStoppingConfig(Config):
    """When to end a run before num_steps."""

    metric: str
    """Name of a held-out metric as in eval.jsonl, such as loss, accuracy or glue_rte_v002/accuracy."""
    mode: Literal["min", "max"] = "min"
    """Whether small or large values are good."""
    patience: PositiveInt = 3
    """Stop after so many evaluations in a row without a better value than ever before."""
    atol: NonNegativeFloat = 0.0
    """Better means better by more than atol + rtol x the size of the best value."""
    rtol: NonNegativeFloat = 0.0
    """Relative to the best value; see atol."""


class TaskProbeConfig(Config):
    """What an encoder that is being pretrained is worth for a task of recipe glue: a copy of it is asked, so that the
    training stays bit for bit the same. On the command line a name stands for {task: NAME}."""

    task: str
    """Such as sst2. Metrics are called probe_TASK/NAME, such as probe_sst2/accuracy."""
    every_steps: PositiveInt | None = None
    """After every so many updates, and after the last; null: only after the last."""
    method: Literal["linear", "finetune"] = "linear"
    """linear: a linear layer on the features of the frozen encoder, fitted to the end. finetune: all of a copy of the
    encoder, for a short time."""
    num_train_examples: PositiveInt = 4096
    """Examples to learn from, spread over the task's, at most all."""
    num_examples: PositiveInt = 2048
    """Held-out examples of each set, at most all."""
    pooling: Literal["own", "cls", "mean", "max", "texts"] = "mean"
    """What stands for an example: the encoder's own vector, its first token, the mean or maximum over its tokens, or
    means over either text of a pair, with their difference and product."""
    max_seq_length: PositiveInt = 128
    """Most tokens of an example; at most those that the encoder reads."""
    l2: PositiveFloat = 1e-3
    """linear: half of this times the squared weights is added to the mean loss; features have deviation 1."""
    num_steps: PositiveInt = 200
    """finetune: updates."""
    batch_size: PositiveInt = 32
    """finetune: examples of an update over all ranks."""
    peak_lr: PositiveFloat = 1e-4
    """finetune: learning rate after a warm-up over a tenth of the updates; then linearly to 0."""


Probes = Annotated[
    tuple[TaskProbeConfig, ...],
    BeforeValidator(partial(as_mappings, key="task"), json_schema_input_type=str | tuple[str | TaskProbeConfig, ...]),
]


class EvaluateConfig(Config):
    """Evaluation on held-out data while training, always with the same examples and masks."""

    every_steps: PositiveInt | None = None
    """Evaluate after every so many updates, and after the last; null: only after the last."""
    every_epochs: PositiveFloat | None = None
    """Instead of every_steps: after every so many passes over the data."""
    before_training: bool = False
    """Also before the first update."""
    early_stopping: EarlyStoppingConfig | None = None
    """Stop when a held-out metric gets no better; null: never."""
    num_examples: PositiveInt = 4096
    """Examples of `data.valid` to use, at most all."""
    batch_size: PositiveInt = 64
    """Examples per forward pass and rank."""
    num_samples: NonNegativeInt = 0
    """Held-out examples that are shown with the model's answers after every evaluation: in TensorBoard and Weights &
    Biases where those are on, and over time in the report. After the last step some are shown in any case. Not while a
    model is sharded (fsdp2, hsdp)."""
    probes: Probes = ()
    """Tasks of recipe glue to try the encoder on while it is trained."""
    probe_folders: Annotated[dict[str, str], IsPath()] = Field(default_factory=dict)
    """Where their data lie, {glue: FOLDER}, as data.task_folders of recipe glue. What is not named is taken from the
    hub."""

    def limited_to(self, num_examples: int) -> Self:
        """The same with at most so many examples of each set."""
        return self.changed(num_examples=num_examples)
