"""Settings of evaluation during training and of probes of the encoder. This module does not import torch."""

from functools import partial
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from pretrainkit.config.base import Config
from pretrainkit.config.fields import NonNegativeFloat
from pretrainkit.config.paths import IsPath
from pretrainkit.training.data_config import as_mappings


class EarlyStoppingConfig(Config):
    """Conditions for ending a run before num_steps."""

    metric: str
    """Name of a held-out metric as in eval.jsonl, such as loss, accuracy or glue_rte_v002/accuracy."""
    mode: Literal["min", "max"] = "min"
    """min: smaller values are better. max: larger values are better."""
    patience: PositiveInt = 3
    """Stop after this many consecutive evaluations without a new best value."""
    atol: NonNegativeFloat = 0.0
    """Absolute part of the minimum improvement, which is atol + rtol x the absolute best value."""
    rtol: NonNegativeFloat = 0.0
    """Relative part of the minimum improvement; see atol."""


class TaskProbeConfig(Config):
    """Probe of an encoder during pretraining on a task of recipe glue. The probe uses a copy, so training stays
    bitwise the same. On the command line a name means {task: NAME}."""

    task: str
    """Task, such as sst2. Metrics are called probe_TASK/NAME, such as probe_sst2/accuracy."""
    every_steps: PositiveInt | None = None
    """Probe each time after this many updates, and after the last; null: only after the last."""
    method: Literal["linear", "finetune"] = "linear"
    """linear: fit a linear layer on the features of the frozen encoder until convergence. finetune: train all
    parameters of a copy of the encoder for a few updates."""
    num_train_examples: PositiveInt = 4096
    """Maximum number of training examples, evenly spread over the task's training set."""
    num_examples: PositiveInt = 2048
    """Maximum number of held-out examples of each set."""
    pooling: Literal["own", "cls", "mean", "max", "texts"] = "mean"
    """Feature vector of an example. own: the encoder's pooled vector. cls: its first token. mean, max: over its tokens.
    texts: the means of the two texts of a pair, with their difference and product."""
    max_seq_length: PositiveInt = 128
    """Maximum number of tokens of an example, limited by the encoder's own maximum."""
    l2: PositiveFloat = 1e-3
    """linear: strength of L2 regularization; l2 / 2 x squared weights is added to the mean loss of standardized
    features."""
    num_steps: PositiveInt = 200
    """finetune: number of updates."""
    batch_size: PositiveInt = 32
    """finetune: examples per update over all ranks."""
    peak_lr: PositiveFloat = 1e-4
    """finetune: learning rate after a warm-up over a tenth of the updates; then it decays linearly to 0."""


Probes = Annotated[
    tuple[TaskProbeConfig, ...],
    BeforeValidator(partial(as_mappings, key="task"), json_schema_input_type=str | tuple[str | TaskProbeConfig, ...]),
]


class EvaluateConfig(Config):
    """Evaluation on held-out data during training, always with the same examples and masks."""

    every_steps: PositiveInt | None = None
    """Number of updates between evaluations; the last update is always followed by one. null: only after the last."""
    every_epochs: PositiveFloat | None = None
    """Number of passes over the data between evaluations, instead of every_steps."""
    before_training: bool = False
    """Also evaluate before the first update."""
    early_stopping: EarlyStoppingConfig | None = None
    """Stop when a held-out metric no longer improves; null: never."""
    num_examples: PositiveInt = 4096
    """Maximum number of examples of `data.valid` to use."""
    batch_size: PositiveInt = 64
    """Examples per forward pass and rank."""
    num_samples: NonNegativeInt = 0
    """Number of held-out examples to show with the model's answers after each evaluation: in the report, and in
    TensorBoard and Weights & Biases if enabled. Some are always shown after the last step. Sharded models (fsdp2, hsdp)
    show none."""
    probes: Probes = ()
    """Tasks of recipe glue on which to probe the encoder during training."""
    probe_folders: Annotated[dict[str, str], IsPath()] = Field(default_factory=dict)
    """Data folders of the probes, {glue: FOLDER}, as in data.task_folders of recipe glue. Other tasks are loaded from
    the hub."""

    def limited_to(self, num_examples: int) -> Self:
        """Return a copy with at most `num_examples` examples of each set."""
        return self.changed(num_examples=num_examples)
