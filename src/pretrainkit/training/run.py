"""The root config: one run of one recipe. Torch-free.

A recipe subclasses `RunConfig` and narrows `model`, `objective` and `data` to its own classes.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
    field_validator,
)

from pretrainkit.config.base import Config
from pretrainkit.config.paths import IsPath

Rate = Annotated[float, Field(ge=0, le=1)]
NonNegativeFloat = Annotated[float, Field(ge=0)]


class SourceConfig(Config):
    """One component of a mixture. On the command line a plain path stands for {path: PATH}."""

    path: Annotated[str, IsPath()]
    """Folder of token shards, as written by `pretrainkit tokenizer encode`."""
    weight: PositiveFloat | None = None
    """Share of the examples of a batch, relative to the other components; null: proportional to size."""


def as_sources(value: object) -> object:
    """What people write for data: one path, several separated by commas, a list of paths and mappings."""
    if value is None:  # as in data.valid=null on the command line
        return ()
    if isinstance(value, str):
        value = [part for part in value.split(",") if part]
    if isinstance(value, (list, tuple)):
        return [{"path": item} if isinstance(item, str) else item for item in value]
    return value


Sources = Annotated[
    tuple[SourceConfig, ...], BeforeValidator(as_sources, json_schema_input_type=str | tuple[str | SourceConfig, ...])
]


class DataConfig(Config):
    """What the model is fed. Recipes add their own fields."""

    train: Sources = ()
    """Token shards to train on: one path, several separated by commas, or a list of {path, weight}."""
    valid: Sources = ()
    """Held-out token shards. Documents that also occur in `train` are refused."""
    order: Literal["shuffle", "lanes", "sequential"] = "shuffle"
    """shuffle: every example independently permuted, anew each epoch. lanes: documents permuted, and each row of the
    batch reads on in its document from step to step (Sabertooth). sequential: as stored."""
    batch_size: PositiveInt
    """Examples of one step over all ranks and microbatches."""
    microbatch_size: PositiveInt | None = None
    """Examples of one forward pass on one rank; null: all of the rank's examples at once."""
    num_epochs: PositiveFloat | None = None
    """With num_steps null: train for so many passes over the data. Else: refuse a run whose num_steps needs more than
    so many; null: no limit."""
    prefetch: NonNegativeInt = 2
    """Steps to prepare ahead in a background thread; 0: none."""

    @property
    def loader_workers(self) -> tuple[Literal["threads", "processes"], int]:
        """What prepares batches ahead, and how many; 0: one thread. Recipes whose examples take long to make say so."""
        return "threads", 0


def _is_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_is_pattern)]


class ParameterGroup(Config):
    """Parameters that are updated in another way than the rest."""

    pattern: Pattern
    """Regular expression that is found in their names, such as bias|pos_embed; at least one parameter must fit."""
    lr_scale: NonNegativeFloat = 1.0
    """Factor of the learning rate."""
    weight_decay: NonNegativeFloat | None = None
    """In place of optimizer.weight_decay or of none; null: as without this group."""


class AdafactorConfig(Config):
    """What only Adafactor has. The defaults are those of T5X."""

    factored: bool = True
    """Keep row and column means of large matrices in place of a full second moment."""
    min_dim_size_to_factor: PositiveInt = 128
    """Matrices whose smaller side is shorter keep a full second moment."""
    multiply_by_parameter_scale: bool = True
    """Steps are relative to the root mean square of the parameter, and peak_lr is a share of it."""
    max_parameter_scale: PositiveFloat | None = None
    """Larger root mean squares count as this; null: no limit."""
    beta1: Rate | None = None
    """Decay of a momentum of the scaled updates; null: none, and no memory for it."""
    decay_rate: PositiveFloat = 0.8
    """The second moment decays by 1 - t ** -decay_rate in update t = 1, 2, ..."""
    step_offset: NonNegativeInt = 0
    """Updates before this run that the decay does not count, to start it anew from a checkpoint."""
    clipping_threshold: PositiveFloat = 1.0
    """Root mean square that a tensor's update is cut down to, before it meets the learning rate."""
    epsilon1: PositiveFloat = 1e-30
    """Added to squared gradients."""
    epsilon2: PositiveFloat = 1e-3
    """Smaller root mean squares of a parameter count as this, so that one of zeros can move."""
    weight_decay_rate: Rate | None = None
    """Share of the parameters that decay which each step takes away, whatever the learning rate; null: none. It stands
    in for optimizer.weight_decay. T5X lets all parameters decay: decay_mask=all."""
    weight_decay_lr_exponent: NonNegativeFloat | None = None
    """That share is weight_decay_rate x learning rate to this power; null: weight_decay_rate itself."""
    skip_nan_updates: bool = False
    """Leave elements as they were whose update is no number. The loop already skips whole steps: see
    max_skipped_steps."""


class OptimizerConfig(Config):
    """How gradients become updates."""

    name: Literal["adamw", "lamb", "sgd", "lars", "adafactor", "lion", "muon"] = "adamw"
    """adamw: Adam with bias correction and decoupled decay. lamb: the same update with a trust ratio per tensor. sgd:
    with momentum; the decay is added to the gradient. lars: sgd with a trust ratio per tensor. adafactor: T5's, with
    little memory and steps relative to the parameter. lion: the sign of a momentum. muon: the momentum of each matrix
    in the model's blocks, made orthogonal; adamw for all other parameters, at the same learning rate."""
    peak_lr: PositiveFloat
    """Learning rate after warm-up."""
    beta1: Rate = 0.9
    """Decay of the first moment."""
    beta2: Rate = 0.999
    """Decay of the second moment."""
    epsilon: PositiveFloat = 1e-6
    """Added to the root of the second moment."""
    momentum: Rate = 0.9
    """sgd, lars and muon only: how much of the last update stays. Muon was published with 0.95."""
    nesterov: bool = False
    """sgd and lars only: look ahead along the momentum."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled, multiplied by the learning rate. Not read by adafactor."""
    scale_by_parameter_rms: bool = False
    """adamw only: multiply each tensor's step by its root mean square, at least 0.001 (nanoT5)."""
    adafactor: AdafactorConfig = AdafactorConfig()
    """adafactor only."""
    decay_mask: Literal["by_name", "by_ndim_compat", "all"] = "by_name"
    """by_name: all but biases, norms, temperatures, class tokens and learned positions of vision transformers and CLIP
    decay. by_ndim_compat: Sabertooth of 2022, where query, key and value
    biases decay too. all: every parameter, as in ZeroVL."""
    groups: tuple[ParameterGroup, ...] = ()
    """Exceptions by name; where several fit a parameter, the last one counts."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Clip the global gradient norm to this; 0: no clipping."""
    clip: Literal["norm", "squared_norm_legacy"] = "norm"
    """squared_norm_legacy: Sabertooth of 2021, which compared and divided by the squared norm."""


ScheduleFactor = Literal[
    "constant",
    "linear_warmup",
    "rsqrt_decay",
    "rsqrt_normalized_decay",
    "decay_every",
    "cosine_decay",
    "linear_decay",
]


class ScheduleConfig(Config):
    """Learning rate as a share of peak_lr, by update index t = 0, 1, ...; warm-up is linear from 0, so update 0 has
    learning rate 0 when num_warmup_steps > 0."""

    name: Literal["linear", "cosine", "inverse_sqrt", "wsd", "constant", "factors"] = "linear"
    """linear: to 0 at num_steps. cosine: to floor. inverse_sqrt: peak x sqrt(warmup / t). wsd: constant, then 1 - sqrt
    decay over the last num_decay_steps. constant: after warm-up. factors: T5X's product of named factors, without any
    warm-up of its own."""
    num_warmup_steps: NonNegativeInt = 0
    """Updates until peak_lr is reached."""
    warmup_share: Rate | None = None
    """Instead of num_warmup_steps: this share of num_steps, rounded down."""
    floor: Rate = 0.0
    """Share of peak_lr at the end (cosine, linear, wsd)."""
    num_decay_steps: NonNegativeInt = 0
    """wsd only: updates of the final decay."""
    factors: tuple[ScheduleFactor, ...] = ()
    """factors only: what is multiplied, with s = t - step_offset and w = num_warmup_steps; T5X's "a * b" is read too.
    constant: peak_lr. linear_warmup: min(1, s / w). rsqrt_decay: 1 / sqrt(max(s, w)). rsqrt_normalized_decay: the same
    x sqrt(w). decay_every: decay_factor ** (s // steps_per_decay). cosine_decay: half a cosine from 1 to 0 over each
    steps_per_cycle after w. linear_decay: peak_lr x min(s / w, 1 + decay_factor x (w - s))."""
    decay_factor: NonNegativeFloat = 0.5
    """factors only: of decay_every and linear_decay."""
    steps_per_decay: PositiveInt = 20_000
    """factors only: updates between two cuts of decay_every."""
    steps_per_cycle: PositiveInt = 100_000
    """factors only: updates of one cosine."""
    step_offset: NonNegativeInt = 0
    """Start the schedule anew: update step_offset counts as the first, and so do those before."""
    min_lr: NonNegativeFloat = 1e-8
    """factors only: the learning rate is never lower."""

    @field_validator("factors", mode="before")
    @classmethod
    def _split_factors(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split("*")) if isinstance(value, str) else value

    def warmup_steps(self, num_steps: int) -> int:
        """Updates of the warm-up in a run of `num_steps`."""
        if self.warmup_share is None:
            return self.num_warmup_steps
        return int(num_steps * self.warmup_share + 1e-9)  # 0.07 * 100 is 7.000000000000001, 0.29 * 100 below 29


class PrecisionConfig(Config):
    """Number formats. Master weights and optimiser state are always float32."""

    compute: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on GPUs that have it and CPUs with AVX512_BF16 or AMX, else float32. float16 scales the loss."""
    matmul_tf32: bool = True
    """Let float32 matrix products use TF32 on GPUs that have it."""


class ParallelConfig(Config):
    """How the model is spread. The number of ranks is the launcher's."""

    strategy: Literal["auto", "ddp", "fsdp2"] = "auto"
    """auto: ddp when there is more than one rank."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile per block. auto: on for CUDA, off for CPU, where it costs more than it gives."""
    activation_checkpointing: bool = False
    """Recompute each block in the backward pass instead of storing its activations."""


class KeepBestConfig(Config):
    """Checkpoints that are kept because they evaluate well. Each is saved right after its evaluation."""

    metric: str
    """Name of a held-out metric as in eval.jsonl, such as loss, accuracy or glue_rte_v002/accuracy."""
    mode: Literal["min", "max"] = "min"
    """Whether small or large values are good."""
    keep: PositiveInt = 1
    """Checkpoints to keep: so many best ones."""


class CheckpointConfig(Config):
    """When the state is saved and what is kept. The first and the last update are always saved. A checkpoint with a
    file PINNED in its folder is never deleted."""

    every_steps: PositiveInt = 1000
    """Save after every so many updates."""
    keep_last: PositiveInt = 2
    """Newest checkpoints to keep."""
    keep_every_steps: PositiveInt | None = None
    """Also keep, for good, every checkpoint whose step is a multiple of this."""
    keep_best: KeepBestConfig | None = None
    """Also keep those with the best value of a held-out metric; null: none."""
    asynchronous: bool = True
    """Write in the background while training goes on."""


class LogConfig(Config):
    """Metrics of training."""

    every_steps: PositiveInt = 10
    """Write a line of metrics after every so many updates."""
    tensorboard: bool = False
    """Also write TensorBoard event files into the run folder."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Also log to Weights & Biases."""
    wandb_project: str = "pretrainkit"
    """Project name for Weights & Biases."""


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
    pooling: Literal["own", "cls", "mean", "max"] = "mean"
    """What stands for an example: the encoder's own vector, its first token, or the mean or maximum over its tokens."""
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


def as_probes(value: object) -> object:
    """What people write: names with commas between, or a list of names and mappings."""
    if isinstance(value, str):
        value = [part for part in value.split(",") if part]
    if isinstance(value, (list, tuple)):
        return [{"task": item} if isinstance(item, str) else item for item in value]
    return value


Probes = Annotated[
    tuple[TaskProbeConfig, ...],
    BeforeValidator(as_probes, json_schema_input_type=str | tuple[str | TaskProbeConfig, ...]),
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
    model is sharded (fsdp2)."""
    probes: Probes = ()
    """Tasks of recipe glue to try the encoder on while it is trained."""
    probe_folders: Annotated[dict[str, str], IsPath()] = Field(default_factory=dict)
    """Where their data lie, {glue: FOLDER}, as data.task_folders of recipe glue. What is not named is taken from the
    hub."""

    def limited_to(self, num_examples: int) -> Self:
        """The same with at most so many examples of each set."""
        return self.model_copy(update={"num_examples": num_examples})


class InitRename(Config):
    """Tensors of the model that have another name in what it starts from."""

    pattern: Pattern
    """Regular expression of whole names in this model; at least one must fit. The first that fits a name counts."""
    to: str | None = None
    """The name there, with \\1 for what the first group of the pattern found; null: stays as it was drawn."""


class InitConfig(Config):
    """How `init_from` is read. A run that is resumed does not look at it again."""

    restore: Literal["weights", "all"] = "weights"
    """weights: everything else starts anew. all: the optimiser's state, the average of the weights and the step counter
    of a run or checkpoint go on, so that the learning rate does too."""
    step: PositiveInt | None = None
    """Of a run: the checkpoint after so many updates; null: the newest."""
    recipe: str | None = None
    """Of a Hugging Face folder: who reads it, such as huggingface, which takes any encoder as transformers computes it;
    null: the recipe that knows its model_type."""
    averaged: bool = False
    """The average of the weights that ema_decay keeps, in place of the last ones."""
    rename: tuple[InitRename, ...] = ()
    """Names that differ. What a renamed tensor reads is not read under its own name as well."""
    grow: tuple[Pattern, ...] = ()
    """Regular expressions of whole names of tensors that may be larger than there: they take what there is, at the
    beginning of each dimension, and stay as they were drawn beyond."""
    missing: Literal["error", "random"] = "error"
    """Tensors that are not there. random: they stay as they were drawn."""
    unexpected: Literal["error", "ignore"] = "error"
    """Tensors there that the model does not have."""
    data: Literal["start", "continue"] = "start"
    """Where the data begins when the step counter goes on. start: at its first position. continue: where the step
    counter says; with restore=all it must be the data of that run."""


class RunConfig(Config):
    """One training run."""

    recipe: str
    """Name of the recipe this config belongs to."""
    seed: NonNegativeInt = 0
    """Seed of initial weights, data order, masks and dropout."""
    num_steps: PositiveInt | None
    """Optimizer updates; null: as many whole batches as data.num_epochs passes over the data hold."""
    init_from: Annotated[str | None, IsPath()] = None
    """Start from the weights of this run, checkpoint or export (optimiser state starts fresh); null: random."""
    init: InitConfig = InitConfig()
    """How init_from is read."""
    first_step: NonNegativeInt = 0
    """Updates that were made before this run: the step counter, and with it the learning rate, goes on from there.
    init.restore=all fills it in."""
    num_extra_steps: PositiveInt | None = None
    """Updates of this run alone, in place of num_steps, which is then first_step plus so many."""
    model: SerializeAsAny[Config]
    """The architecture."""
    objective: SerializeAsAny[Config]
    """What is predicted."""
    data: SerializeAsAny[DataConfig]
    """What the model is fed."""
    optimizer: OptimizerConfig
    """How gradients become updates."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate over time."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Keep an exponential moving average of the weights with this decay per update; null: none."""
    max_skipped_steps: NonNegativeInt = 0
    """Updates with a non-finite loss or gradient that may be skipped before the run stops."""
    precision: PrecisionConfig = PrecisionConfig()
    """Number formats."""
    parallel: ParallelConfig = ParallelConfig()
    """Compilation and distribution."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the state is saved."""
    log: LogConfig = LogConfig()
    """What is logged, and where."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Evaluation while training."""

    @property
    def total_steps(self) -> int:
        """num_steps of a config that was bound to its data."""
        if self.num_steps is None:
            raise ValueError("num_steps is not known before the data is opened")
        return self.num_steps

    @property
    def token_budget(self) -> int | None:
        """Tokens every microbatch has room for, where batches are packed to a fixed capacity; None elsewhere."""
        return None

    @property
    def has_training_data(self) -> bool:
        """Whether anything to train on is named."""
        return bool(self.data.train)

    @property
    def has_held_out_data(self) -> bool:
        """Whether there is anything to evaluate on."""
        return bool(self.data.valid)

    @property
    def evaluates_repeatedly(self) -> bool:
        """Whether held-out data is looked at while training goes on."""
        evaluate = self.evaluate
        has_probes = any(probe.every_steps is not None for probe in evaluate.probes)
        return evaluate.every_steps is not None or evaluate.every_epochs is not None or has_probes

    def problems(self, world_size: int = 1) -> list[str]:
        """Combinations of settings that cannot work on so many ranks, each as a message. Recipes add their own."""
        found = []
        batch, micro = self.data.batch_size, self.data.microbatch_size
        if batch % world_size:
            found.append(
                f"a batch of {batch} examples cannot be split over {world_size} ranks\n"
                f"  {nearest_multiples(batch, world_size)}"
            )
        elif micro is not None and (batch // world_size) % micro:
            unit = world_size * micro
            found.append(
                f"a batch of {batch} examples cannot be split over {world_size} ranks with microbatches of {micro}\n"
                f"  {batch} is not a multiple of {world_size} x {micro} = {unit}; {nearest_multiples(batch, unit)}"
            )
        found += self._start_problems()
        if self.num_steps is None and self.data.num_epochs is None and self.num_extra_steps is None:
            found.append("neither num_steps nor data.num_epochs says how long to train\n  set one of them")
        if self.evaluate.every_steps is not None and self.evaluate.every_epochs is not None:
            found.append(
                f"evaluate.every_steps={self.evaluate.every_steps} and evaluate.every_epochs="
                f"{self.evaluate.every_epochs} both say when to evaluate\n  give one of them"
            )
        found += self._held_out_problems()
        if self.schedule.warmup_share is not None and self.schedule.num_warmup_steps:
            found.append(
                f"schedule.num_warmup_steps={self.schedule.num_warmup_steps} and "
                f"schedule.warmup_share={self.schedule.warmup_share} both set the warm-up\n  give one of them"
            )
        if self.num_steps is not None:
            found += self._schedule_problems(self.num_steps)
        elif self.schedule.name == "wsd" and not self.schedule.num_decay_steps:
            found.append(
                "schedule.name=wsd needs schedule.num_decay_steps of at least 1\n  a tenth of the run is usual"
            )
        is_sgd = self.optimizer.name in ("sgd", "lars")
        is_adafactor = self.optimizer.name == "adafactor"
        has_betas = not is_sgd and not is_adafactor
        for name, belongs in (
            ("momentum", is_sgd or self.optimizer.name == "muon"),
            ("nesterov", is_sgd),
            ("beta1", has_betas),
            ("beta2", has_betas),
            ("epsilon", has_betas and self.optimizer.name != "lion"),
            ("weight_decay", not is_adafactor),
            ("scale_by_parameter_rms", self.optimizer.name == "adamw"),
            ("adafactor", is_adafactor),
        ):
            value = getattr(self.optimizer, name)
            default = OptimizerConfig.model_fields[name].default
            if not belongs and value != default:
                found.append(
                    f"optimizer.{name}={value} is not read by optimizer.name={self.optimizer.name}\n"
                    f"  leave it out; where a preset has it: optimizer.{name}={default}"
                )
        found += self._factor_problems()
        if self.schedule.name in ("inverse_sqrt", "constant", "factors") and self.schedule.floor:
            found.append(
                f"schedule.floor={self.schedule.floor} is only read by the schedules linear, cosine and wsd, "
                f"not by {self.schedule.name}\n  leave it out, or choose one of those with schedule.name"
            )
        if self.schedule.name != "wsd" and self.schedule.num_decay_steps:
            found.append(
                f"schedule.num_decay_steps={self.schedule.num_decay_steps} is only read by schedule.name=wsd, "
                f"not by {self.schedule.name}\n  leave it out, or set schedule.name=wsd"
            )
        return found

    def _start_problems(self) -> list[str]:
        """Settings of where the run begins that cannot work together."""
        found = []
        init, default = self.init, InitConfig()
        if self.init_from is None and init != default:
            names = [name for name in InitConfig.model_fields if getattr(init, name) != getattr(default, name)]
            found.append(
                f"init.{names[0]} is only read where there is an init_from\n  leave it out, or give init_from=RUN"
            )
        if init.restore == "all" and init != InitConfig(restore="all", step=init.step, data=init.data):
            found.append(
                "init.restore=all goes on with a whole state, so names and shapes cannot differ\n"
                "  leave out init.rename, grow, missing, unexpected and averaged, or set init.restore=weights"
            )
        if self.num_steps is not None and self.num_extra_steps is None and self.first_step >= self.num_steps:
            found.append(
                f"num_steps={self.num_steps} is reached before the run begins: {self.first_step} updates were made\n"
                "  num_steps counts them: give more, or num_extra_steps=N for N updates of this run"
            )
        offset = self.schedule.step_offset
        if self.num_steps is not None and self.num_extra_steps is None and offset >= self.num_steps:
            found.append(
                f"schedule.step_offset={offset} is not before num_steps={self.num_steps}: the schedule never begins\n"
                "  num_steps counts the steps before it as well; give more, or a smaller offset"
            )
        return found

    def _held_out_problems(self) -> list[str]:
        """Decisions on metrics that nobody measures."""
        found = []
        best, stopping = self.checkpoint.keep_best, self.evaluate.early_stopping
        if not self.has_held_out_data and not self.evaluate.probes:
            asked = [
                *([f"checkpoint.keep_best.metric={best.metric}"] if best is not None else []),
                *([f"evaluate.early_stopping.metric={stopping.metric}"] if stopping is not None else []),
                *(["evaluate.before_training=true"] if self.evaluate.before_training else []),
            ]
            found += [f"{one}, but there is nothing to evaluate on\n  give held-out data: data.valid" for one in asked]
        elif stopping is not None and not self.evaluates_repeatedly:
            found.append(
                f"evaluate.early_stopping.metric={stopping.metric} needs evaluations while training, "
                "and there are none\n  set evaluate.every_steps"
            )
        return found

    def _factor_problems(self) -> list[str]:
        """Fields that only schedule.name=factors reads, elsewhere; and factors that are not named."""
        schedule = self.schedule
        if schedule.name == "factors":
            if schedule.factors:
                return []
            return ["schedule.name=factors needs schedule.factors, such as [constant, rsqrt_decay]"]
        names = ("factors", "decay_factor", "steps_per_decay", "steps_per_cycle", "min_lr")
        return [
            f"schedule.{name}={getattr(schedule, name)} is only read by schedule.name=factors, not by {schedule.name}\n"
            "  leave it out, or set schedule.name=factors"
            for name in names
            if getattr(schedule, name) != ScheduleConfig.model_fields[name].default
        ]

    def _schedule_problems(self, num_steps: int) -> list[str]:
        """Phases of the schedule that do not fit into the run."""
        found = []
        num_warmup_steps = self.schedule.warmup_steps(num_steps)
        if num_warmup_steps > num_steps and self.schedule.name != "factors":
            found.append(
                f"schedule.num_warmup_steps {num_warmup_steps} is more than num_steps {num_steps}\n"
                "  shorten the warm-up or train longer"
            )
        if self.schedule.name == "wsd" and not self.schedule.num_decay_steps:
            found.append(
                "schedule.name=wsd needs schedule.num_decay_steps of at least 1\n"
                f"  a tenth of the run is usual: schedule.num_decay_steps={max(1, num_steps // 10)}"
            )
        num_ramp_steps = num_warmup_steps + self.schedule.num_decay_steps
        if self.schedule.name == "wsd" and num_ramp_steps > num_steps >= num_warmup_steps:
            found.append(
                f"schedule.num_warmup_steps + schedule.num_decay_steps is {num_ramp_steps}, more than "
                f"num_steps = {num_steps}\n  shorten the warm-up or the decay, or train longer"
            )
        return found


def nearest_multiples(value: int, unit: int) -> str:
    """The advice after 'not a multiple': the nearest values of data.batch_size that are."""
    below, above = value // unit * unit, -(-value // unit) * unit
    choices = [str(c) for c in (below, above) if c > 0]
    return f"nearest that fit: data.batch_size={' or '.join(choices)}"
