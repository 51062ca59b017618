"""Settings of the T5 recipe. Imports no torch. Complete configs are in `presets.py`."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from pretrainkit.config.base import DEFAULT, Config, Conflict, ConflictError, ReadBy, shown
from pretrainkit.config.paths import IsPath
from pretrainkit.recipes.t5.decoding_config import DecodingConfig
from pretrainkit.recipes.t5.denoising import DenoisingConfig
from pretrainkit.training.data_config import DataConfig, Names, TaskFolders
from pretrainkit.training.evaluate_config import EvaluateConfig
from pretrainkit.training.run import RunConfig

Activation = Literal["relu", "gelu_tanh", "gelu", "swish", "linear"]
"""gelu_tanh is Hugging Face's `gelu_new`, which T5 1.1 uses; linear is the identity."""

DropoutRate = Annotated[float, Field(ge=0, lt=1)]


def round_vocab(size: int, multiple: int = 128) -> int:
    """Return `size` rounded up to a multiple, as T5 rounds the size of a tokenizer's vocabulary."""
    if size < 1 or multiple < 1:
        raise ValueError(f"size {size} and multiple {multiple} must be at least 1")
    return -(-size // multiple) * multiple


class T5ModelConfig(Config):
    """A text-to-text transformer: norms before layers, no biases, relative positions.

    Sources: Raffel et al. 2020, https://arxiv.org/abs/1910.10683; for 1.1 Shazeer 2020,
    https://arxiv.org/abs/2002.05202.
    """

    neutral_fields: ClassVar[frozenset[str]] = frozenset({"dropout", "init_style"})

    kind: Literal["encoder_decoder", "decoder_only", "encoder_only"] = "encoder_decoder"
    """encoder_decoder: T5. decoder_only: a language model, or prefix language model, of the decoder's layers without
    cross-attention. encoder_only: predicts at the encoder's positions."""
    vocab_size: PositiveInt | None = None
    """Number of rows of the embedding table; null: the pieces and sentinels of the tokenizer, rounded up to a multiple
    of 128."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    num_heads: PositiveInt
    """Number of attention heads."""
    head_size: PositiveInt = 64
    """Width of one head; num_heads x head_size need not be hidden_size."""
    intermediate_size: PositiveInt
    """Width of the feed-forward layer."""
    num_encoder_layers: PositiveInt | None
    """Number of blocks of the encoder; null: no encoder."""
    num_decoder_layers: PositiveInt | None
    """Number of blocks of the decoder; null: no decoder."""
    activations: tuple[Activation, ...] = ("gelu_tanh", "linear")
    """One name: a plain feed-forward layer (T5 1.0: relu). Several: the product of this number of projections (T5
    1.1)."""
    tied_logits: bool = False
    """Compute logits with the embedding table, scaled by hidden_size ** -0.5, instead of a separate matrix; as in T5
    1.0."""
    bias_per_layer: bool = False
    """Use a table of relative positions for each layer, as in umT5, instead of one for the whole stack."""
    num_buckets: Annotated[int, Field(ge=4, multiple_of=2)] = 32
    """Number of rows of a table of relative positions."""
    max_distance: PositiveInt = 128
    """All distances from this number of tokens on share a bucket."""
    dropout: DropoutRate = 0.0
    """Dropout on embeddings, attention probabilities, inside feed-forward layers, and on the output of every layer and
    stack. Masks are drawn for every element; T5X repeats them along a sequence."""
    norm_epsilon: PositiveFloat = 1e-6
    """Added to the mean square in the norms."""
    init_style: Literal["t5x", "hf"] = "t5x"
    """Initial weights. t5x: as in T5X. hf: as in transformers, whose logits matrix is hidden_size ** 0.5 times larger.
    This is too large, above all for Adam."""

    @field_validator("activations")
    @classmethod
    def _check_activations(cls, names: tuple[Activation, ...]) -> tuple[Activation, ...]:
        if not names:
            raise ValueError("activations is empty; set at least one, such as [relu]")
        return names

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        has_encoder, has_decoder = self.kind != "decoder_only", self.kind != "encoder_only"
        for name, is_needed in (("num_encoder_layers", has_encoder), ("num_decoder_layers", has_decoder)):
            value = getattr(self, name)
            if is_needed != (value is not None):
                message = f"{name} is {shown(value)}, but kind {self.kind} needs {'a number' if is_needed else 'null'}"
                raise ConflictError(Conflict(message, [] if is_needed else [(name, None)], "kind"))
        if self.max_distance <= self.num_buckets // 2:
            raise ValueError(
                f"max_distance {self.max_distance} leaves no distances for half of the num_buckets {self.num_buckets}; "
                f"make it at least {self.num_buckets // 2 + 1}"
            )
        return self


class T5ObjectiveConfig(Config):
    """Cross-entropy of the target tokens."""

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that moves from the target to all other tokens together."""
    z_loss: NonNegativeFloat = 1e-4
    """Factor of logsumexp(logits) ** 2, which keeps the logits from drifting; 0 disables it."""
    normalize_by: (
        Literal["none", "real_target_tokens", "total_target_tokens", "average_per_sequence"] | PositiveFloat
    ) = "none"
    """Divisor of the summed loss of a step. none: no division, as in T5X, because Adafactor ignores the scale of the
    loss. A number: divide by it. real_target_tokens: number of target tokens with a loss. total_target_tokens: number
    of all target positions, including padding. average_per_sequence: average over the tokens of each example, then over
    the examples. With Adam use real_target_tokens."""

    @field_validator("normalize_by", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        """Accept T5X's names, which are in capitals, some with the prefix NUM_."""
        return value.lower().removeprefix("num_") if isinstance(value, str) else value


HELD_OUT = "validation"
"""The usual name of a task's held-out split."""


class T5DataConfig(DataConfig):
    """The data and the batches."""

    held_out_fields: ClassVar[tuple[str, ...]] = ("valid", "task")
    input_length: PositiveInt = 512
    """Maximum number of tokens of an input, including its end mark: the width of the encoder's rows."""
    target_length: PositiveInt = 114
    """Maximum number of tokens of a target, including its end mark: the width of the decoder's rows. Span corruption at
    its default rates makes targets of 114 tokens from inputs of 512."""
    task: str | None = None
    """Task or mixture to train on, instead of token shards in `train`."""
    modules: Annotated[Names, IsPath(".py")] = ()
    """Modules that define tasks: dotted names, or paths of .py files."""
    caches: Annotated[Names, IsPath()] = ()
    """Folders created by pretrainkit tasks cache, searched in this order. Tasks without a matching cache are computed
    while they are read."""
    tokenizer: Annotated[str | None, IsPath()] = None
    """Vocabulary of tasks that leave it to the run, such as the named tasks: a tokenizer folder (of pretrainkit, or of
    a T5 of Hugging Face), a run or export, or bytes; null: the vocabulary of init_from."""
    task_folders: TaskFolders = Field(default_factory=dict)
    """Folders with the data of named tasks: {glue: FOLDER, ...}, {glue/cola: FOLDER} for one data set of a benchmark,
    or {all: FOLDER} for all data. Other data is downloaded from the hub."""
    leave_out: Names = ()
    """Tasks and mixtures to leave out of mixtures, such as those without data."""
    train_split: str = "train"
    """Split of the tasks to train on."""
    valid_split: str | None = HELD_OUT
    """Split of the tasks that is held out. null: no held-out data."""
    held_out_share: Annotated[float, Field(gt=0, le=0.5)] | None = 0.01
    """With valid_split=validation, for tasks without that split: the share of the training split that is held out
    instead, at even distances. It is increased, up to a half, if that would be less than 10 examples. null: these
    tasks are not evaluated."""
    denoising: DenoisingConfig = DenoisingConfig()
    """Corruption of unlabelled text."""
    packing: bool = False
    """Put several examples of a microbatch into one row if they fit, without attention between them. Losses and
    gradients stay the same, with less padding."""
    packed_rows: Annotated[PositiveInt | None, ReadBy("packing", (True,))] = None
    """Number of rows of every microbatch with packing, for constant shapes; a microbatch that needs more rows is an
    error. null: as many as the examples need, rounded up by at most an eighth, so that there are few shapes;
    `pretrainkit data check` counts them."""


class InferConfig(Config):
    """Evaluation of tasks by their metrics, on the answers of the model."""

    every_steps: PositiveInt | None = None
    """Evaluate after this many updates, and after the last; null: together with the held-out losses."""
    split: str | None = None
    """Split of the tasks; null: data.valid_split."""
    num_examples: PositiveInt | None = None
    """Number of examples of each task, from the start of the split; null: all."""
    batch_size: PositiveInt = 64
    """Number of examples per forward pass and rank. Metrics do not depend on it."""
    input_length: PositiveInt | None = None
    """Maximum number of tokens of an input; null: no limit."""
    target_length: PositiveInt | None = None
    """Maximum number of tokens of an answer; null: the length of the longest target of the tasks."""
    decoding: DecodingConfig = DecodingConfig()
    """Decoding of the answers."""
    num_written: NonNegativeInt | None = 200
    """Number of examples of each task whose input, target and answer are written to RUN/evaluations/TASK-STEP.jsonl. 0:
    none. null: all."""


class T5EvaluateConfig(EvaluateConfig):
    """Evaluation on held-out data while training."""

    num_examples_per_task: PositiveInt | None = None
    """Number of examples for the loss of each single task or denoiser; null: num_examples divided by the number of
    tasks or denoisers."""
    infer: InferConfig | None = InferConfig()
    """Evaluation of answers, for runs on tasks that have metrics; null: no such evaluation."""

    def limited_to(self, num_examples: int) -> Self:
        infer = self.infer and self.infer.model_copy(update={"num_examples": num_examples})
        return super().limited_to(num_examples).model_copy(update={"infer": infer})


class T5Run(RunConfig):
    """One training of the T5 recipe."""

    recipe: Literal["t5"] = "t5"
    """Name of the recipe this config belongs to."""
    model: T5ModelConfig
    """The architecture."""
    objective: T5ObjectiveConfig = T5ObjectiveConfig()
    """The training objective."""
    data: T5DataConfig
    """The training and held-out data."""
    evaluate: T5EvaluateConfig = T5EvaluateConfig()
    """Evaluation while training."""

    @property
    def trained_length(self) -> int:
        return max(self.data.input_length, self.data.target_length)

    @property
    def evaluates_repeatedly(self) -> bool:
        """True if held-out data is evaluated during training."""
        infer = self.evaluate.infer
        has_own = self.data.task is not None and infer is not None and infer.every_steps is not None
        return has_own or super().evaluates_repeatedly

    @property
    def has_training_data(self) -> bool:
        """True if training data is configured."""
        return self.data.task is not None or bool(self.data.train)

    @property
    def has_held_out_data(self) -> bool:
        """True if held-out data is configured."""
        return bool(self.data.valid) or (self.data.task is not None and self.data.valid_split is not None)

    def problems(self, world_size: int = 1) -> list[str]:
        """Return the problems of the base class, and settings of this recipe that conflict."""
        problems = super().problems(world_size)
        if self.precision.compute == "float16":
            problems.append(
                "precision.compute=float16 does not work for T5: training diverges\n"
                "  use bfloat16, or float32 with precision.matmul_tf32=true"
            )
        if self.data.task is None and self.evaluate.infer not in (None, InferConfig()):
            problems.append(
                "evaluate.infer has an effect only with data.task: token shards have no metrics\n"
                "  leave it out, or set data.task"
            )
        problems += self._denoising_problems()
        # Clipping by value is never a default: users who set it, or import it from T5X, want it for the summed loss.
        is_clipped = self.optimizer.name != "adafactor" and self.optimizer.clip != "value"
        if is_clipped and self.objective.normalize_by == "none" and self.optimizer.max_grad_norm:
            problems.append(
                Conflict(
                    "objective.normalize_by=none sums the loss over the batch, and optimizer.name="
                    f"{self.optimizer.name} clips the gradient of that sum\n"
                    "  set objective.normalize_by=real_target_tokens",
                    [("objective.normalize_by", "real_target_tokens")],
                    "optimizer.name",
                    "optimizer.max_grad_norm",
                )
            )
        return problems

    def _denoising_problems(self) -> list[str]:
        """Return conflicts between objective and kind of model, and fields without effect."""
        problems: list[str] = []
        kind, denoising = self.model.kind, self.data.denoising
        if self.data.task is not None:
            if self.data.train or self.data.valid:
                problems.append(
                    f"data.task={self.data.task} conflicts with data.train and data.valid\n  use one of them"
                )
            return problems
        for name in ("tokenizer", "task_folders", "leave_out"):
            if getattr(self.data, name):
                problems.append(
                    Conflict(
                        f"data.{name}={getattr(self.data, name)} has an effect only with data.task\n"
                        "  leave it out; token shards contain their tokenizer",
                        [(f"data.{name}", DEFAULT)],
                        "data.task",
                    )
                )
        has_inputs = {denoiser.inputs is not None for denoiser in denoising.all}
        if kind != "decoder_only" and False in has_inputs:
            problems.append(
                f"data.denoising.name={denoising.name} makes no inputs, but model.kind={kind} needs them\n"
                "  set model.kind=decoder_only model.num_encoder_layers=null, or another objective such as prefix_lm"
            )
        if kind == "decoder_only" and len(has_inputs) > 1:
            problems.append("data.denoising.denoisers mixes denoisers with and without inputs\n  use one kind in a run")
        if any(denoiser.pairs for denoiser in denoising.all) and kind != "decoder_only":
            inputs, targets = self.data.input_length, self.data.target_length
            if len(denoising.all) > 1:
                problems.append("data.denoising.denoisers mixes pairs with others\n  use only denoisers of pairs")
            if inputs != targets:
                problems.append(
                    Conflict(
                        f"data.input_length={inputs} and data.target_length={targets} differ, but paired examples need "
                        "rows of the same width on both sides\n"
                        f"  make them equal: data.target_length={inputs} or data.input_length={targets}",
                        [("data.target_length", inputs), ("data.input_length", targets)],
                        "data.denoising.name",
                    )
                )
            if self.data.packing:
                problems.append("data.packing=true, but pairs already fill their rows\n  set data.packing=false")
        replacements = {(denoiser.inputs, denoiser.targets) for denoiser in denoising.all}
        if kind == "encoder_only" and replacements != {("sentinel_per_token", "keep")}:
            problems.append(
                Conflict(
                    "model.kind=encoder_only predicts one token per input token, which does not fit "
                    f"data.denoising.name={denoising.name}\n  set data.denoising.name=mass_style",
                    [("data.denoising.name", "mass_style")],
                    "model.kind",
                )
            )
        return problems
