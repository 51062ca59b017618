"""The root config: one run of one recipe. This module does not import torch.

A recipe subclasses `RunConfig` and narrows `model`, `objective` and `data` to its own classes.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, SerializeAsAny, model_validator

from pretrainkit.config.base import DEFAULT, Config, Conflict, ReadBy, unread
from pretrainkit.config.fields import Pattern
from pretrainkit.config.paths import IsPath
from pretrainkit.errors import ConfigError
from pretrainkit.training.data_config import DataConfig
from pretrainkit.training.evaluate_config import EvaluateConfig
from pretrainkit.training.optimizers.config import OptimizerConfig, ScheduleConfig, usual_lr


class PrecisionConfig(Config):
    """Number formats. Master weights and optimizer state are always float32."""

    compute: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on GPUs, out-of-tree back ends and CPUs (AVX512_BF16 or AMX) that support it, otherwise float32.
    float16 uses loss scaling."""
    matmul_tf32: bool = True
    """Use TF32 for float32 matrix products on GPUs that support it."""
    residual: Literal["auto", "float32", "compute"] = "auto"
    """Number format of the residual stream, which causes most of a GPU's memory traffic. compute: the format of
    `compute`, with norms, logits and losses in float32; T5 always does this, as T5X does. auto: compute on GPUs in
    bfloat16, otherwise float32."""


class ParallelConfig(Config):
    """Distribution of the model over the ranks. The launcher decides the number of ranks."""

    strategy: Literal["auto", "ddp", "fsdp2", "hsdp"] = "auto"
    """ddp: every rank holds the whole model. fsdp2: parameters are sharded over all ranks. hsdp: fsdp2 within a group
    of ranks and copies in the other groups, so that weights are exchanged within a machine and only gradients between
    machines. auto: ddp if there is more than one rank."""
    shard_ranks: Annotated[Annotated[int, Field(ge=2)] | None, ReadBy("strategy", ("hsdp",))] = None
    """hsdp only: number of consecutive ranks that share one copy; null: the ranks of a machine."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Use torch.compile for each block, vocabulary losses and CLIP's contrastive loss. auto: on for CUDA runs of at
    least 1,000 updates; off on CPU and for shorter runs, where compiling takes more time than it saves."""
    fit: Literal["off", "auto"] = "off"
    """auto: if a microbatch does not fit into the device's memory, set data.microbatch_size to the largest that does,
    according to the estimate of `pretrainkit plan`. Gradients stay the same except for rounding."""
    activation_checkpointing: bool = False
    """Recompute each block in the backward pass instead of storing its activations."""

    @property
    def is_sharded(self) -> bool:
        """True if each rank holds only a shard of each parameter."""
        return self.strategy in ("fsdp2", "hsdp")

    def require_ranks(self, world_size: int) -> None:
        """Raise ConfigError if the strategy shards the model but there is only one rank."""
        if self.is_sharded and world_size == 1:
            raise ConfigError(
                f"parallel.strategy={self.strategy} needs more than one rank\n  start with --launch local --nproc 2"
            )

    def problems(self, world_size: int) -> list[str]:
        """Return a message for each setting that is impossible with `world_size` ranks."""
        shards = self.shard_ranks if self.strategy == "hsdp" else None
        if shards is not None and world_size > 1 and world_size % shards:
            divisors = [str(size) for size in range(2, world_size + 1) if world_size % size == 0]
            return [
                f"{world_size} ranks cannot be grouped by parallel.shard_ranks={shards}\n"
                f"  start a multiple of {shards}, or set parallel.shard_ranks to one of: {', '.join(divisors)}"
            ]
        return []


class KeepBestConfig(Config):
    """Retention of the best checkpoints by a held-out metric. Each is saved right after its evaluation."""

    metric: str
    """Name of a held-out metric as in eval.jsonl, such as loss, accuracy or glue_rte_v002/accuracy."""
    mode: Literal["min", "max"] = "min"
    """min: smaller values are better. max: larger values are better."""
    keep: PositiveInt = 1
    """Number of best checkpoints to keep."""


class CheckpointConfig(Config):
    """Saving and retention of checkpoints. The first and the last update are always saved. A checkpoint with a file
    PINNED in its folder is never deleted."""

    every_steps: PositiveInt = 1000
    """Number of updates between checkpoints."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints to keep."""
    keep_every_steps: PositiveInt | None = None
    """Also keep every checkpoint whose step is a multiple of this, permanently."""
    keep_best: KeepBestConfig | None = None
    """Also keep the checkpoints with the best values of a held-out metric; null: none."""
    asynchronous: bool = True
    """Write checkpoints in the background while training continues."""


class LogConfig(Config):
    """Logging of training metrics."""

    every_steps: PositiveInt = 10
    """Number of updates between lines of metrics."""
    to: tuple[Literal["tensorboard", "wandb", "wandb-offline", "mlflow", "trackio"], ...] = ()
    """Services that show metrics and samples besides metrics.jsonl. The files of TensorBoard are in the run folder; the
    other services read address and login from their own environment variables."""
    project: str = "pretrainkit"
    """Name of the project in these services (in MLflow: of the experiment)."""
    diagnostics: bool = False
    """Also log, for each block of the model, gradient norm, update-to-weight ratio and largest activation, and the
    learning rate of each parameter group. Costs a copy of the weights at each logged step."""
    spikes: NonNegativeFloat = 8.0
    """Report a loss spike if a logged loss exceeds the median of the last 50 by this many standard deviations; the ids
    of the records of its batch are kept. 0: never."""

    @model_validator(mode="before")
    @classmethod
    def _former_names(cls, values: Any) -> Any:
        """Read `tensorboard`, `wandb` and `wandb_project`, which former versions had instead of `to` and `project`."""
        if not isinstance(values, dict) or not values.keys() & {"tensorboard", "wandb", "wandb_project"}:
            return values
        values = dict(values)
        to = list(values.get("to", ()))
        if values.pop("tensorboard", False) is True:
            to.append("tensorboard")
        match values.pop("wandb", "off"):
            case "online":
                to.append("wandb")
            case "offline":
                to.append("wandb-offline")
        if (project := values.pop("wandb_project", None)) is not None:
            values.setdefault("project", project)
        return {**values, "to": list(dict.fromkeys(to))}


class InitRename(Config):
    """Mapping of tensor names of the model to names in the initial checkpoint."""

    pattern: Pattern
    """Regular expression for whole names in this model; must match at least one. The first matching entry is used."""
    to: str | None = None
    """Name in the initial checkpoint, with \\1 for the first group of the pattern; null: keep the random values."""


class InitConfig(Config):
    """Options for loading `init_from`. A resumed run does not read it again."""

    restore: Literal["weights", "all"] = "weights"
    """weights: load only the weights. all: also restore the optimizer's state, the averaged weights and the step
    counter of a run or checkpoint, so that the learning rate continues as well."""
    step: PositiveInt | None = None
    """If init_from is a run: the step of the checkpoint to load; null: the newest."""
    recipe: str | None = None
    """If init_from is a Hugging Face folder: the recipe that reads it. huggingface reads any encoder that transformers
    supports. null: the recipe that supports its model_type."""
    averaged: bool = False
    """Load the averaged weights (see ema_decay) instead of the last ones."""
    rename: tuple[InitRename, ...] = ()
    """Tensors with different names. The source of a renamed tensor is not loaded under its own name as well."""
    grow: tuple[Pattern, ...] = ()
    """Regular expressions for whole names of tensors that may be larger than in the initial checkpoint. Loaded values
    fill the beginning of each dimension; the rest keeps its random values."""
    missing: Literal["error", "random"] = "error"
    """Tensors that the initial checkpoint lacks. random: they keep their random values."""
    unexpected: Literal["error", "ignore"] = "error"
    """Tensors of the initial checkpoint that the model does not have. ignore: they are not loaded."""
    data: Literal["start", "continue"] = "start"
    """First data position if the step counter continues. start: the beginning of the data. continue: the position of
    the step counter; with restore=all the data must be that of the earlier run."""


class RunConfig(Config):
    """One training run."""

    recipe: str
    """Name of the recipe this config belongs to."""
    seed: NonNegativeInt = 0
    """Seed of initial weights, data order, masks and dropout."""
    num_steps: PositiveInt | None
    """Number of optimizer updates; null: the number of whole batches in data.num_epochs passes over the data."""
    init_from: Annotated[str | None, IsPath()] = None
    """Run, checkpoint or export to load initial weights from, with a new optimizer state; null: random weights."""
    init: InitConfig = InitConfig()
    """Options for loading init_from."""
    first_step: NonNegativeInt = 0
    """Number of updates made before this run. The step counter and the learning rate continue from there.
    init.restore=all sets this."""
    num_extra_steps: PositiveInt | None = None
    """Number of updates of this run alone; num_steps is then first_step + num_extra_steps."""
    model: SerializeAsAny[Config]
    """Architecture."""
    objective: SerializeAsAny[Config]
    """Training objective."""
    data: SerializeAsAny[DataConfig]
    """Training and held-out data."""
    optimizer: OptimizerConfig
    """Optimizer."""
    schedule: ScheduleConfig = ScheduleConfig()
    """Learning rate schedule."""
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Keep an exponential moving average of the weights with this decay per update; null: none."""
    max_skipped_steps: NonNegativeInt = 0
    """Maximum number of skipped updates, whose loss or gradient is not finite, before the run stops."""
    precision: PrecisionConfig = PrecisionConfig()
    """Number formats."""
    parallel: ParallelConfig = ParallelConfig()
    """Compilation and distribution."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Saving and retention of checkpoints."""
    log: LogConfig = LogConfig()
    """Logging of metrics."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Evaluation during training."""

    @property
    def total_steps(self) -> int:
        """Value of num_steps. Raises ValueError if it is null, as it may be until the data is opened."""
        if self.num_steps is None:
            raise ValueError("num_steps is not known before the data is opened")
        return self.num_steps

    @property
    def token_budget(self) -> int | None:
        """Capacity of a microbatch in tokens if batches are packed to a fixed capacity; otherwise None."""
        return None

    @property
    def has_training_data(self) -> bool:
        """True if training data is configured."""
        return bool(self.data.train)

    @property
    def has_held_out_data(self) -> bool:
        """True if held-out data is configured."""
        return bool(self.data.valid)

    @property
    def has_held_out_examples(self) -> bool:
        """True if there are held-out examples to show, which folders of image classes alone do not provide."""
        named = self.data.model_dump(include={*self.data.held_out_fields}).values()
        return self.has_held_out_data and any(named)

    @property
    def trained_length(self) -> int | None:
        """Maximum number of tokens of a training example, up to which positions are trained; None if examples are not
        measured in tokens or positions are unlimited."""
        return None

    @property
    def evaluates_repeatedly(self) -> bool:
        """True if held-out data is evaluated during training."""
        evaluate = self.evaluate
        has_probes = any(probe.every_steps is not None for probe in evaluate.probes)
        return evaluate.every_steps is not None or evaluate.every_epochs is not None or has_probes

    def conflicts(self) -> list[Conflict]:
        """Return problems that the loader can solve by changing a value that no user wrote."""
        return [problem for problem in self.problems() if isinstance(problem, Conflict)]

    def unsuited(self, preset: "RunConfig") -> Iterator[Conflict]:
        """Yield conflicts for a preset's learning rate and disabled gradient clipping if the optimizer changed."""
        mine, old = self.optimizer, preset.optimizer
        is_rsqrt = self.schedule.largest_factor < 1, preset.schedule.largest_factor < 1
        factor = preset.schedule.largest_factor / self.schedule.largest_factor if len(set(is_rsqrt)) > 1 else 1.0
        factor *= usual_lr(mine) / usual_lr(old)
        if factor != 1 and mine.peak_lr == old.peak_lr:
            yield Conflict(
                f"optimizer.peak_lr={old.peak_lr:g} was chosen for another optimizer or schedule",
                [("optimizer.peak_lr", float(f"{old.peak_lr * factor:.2g}"))],
                *("optimizer.name", "optimizer.scale_by_parameter_rms"),
                *("optimizer.adafactor.multiply_by_parameter_scale", "schedule.name", "schedule.factors"),
            )
        if mine.name != old.name == "adafactor" and mine.max_grad_norm == 0:  # Adafactor clips updates itself
            yield Conflict("nothing clips the gradients", [("optimizer.max_grad_norm", DEFAULT)], "optimizer.name")

    def problems(self, world_size: int = 1) -> list[str]:
        """Return a message for each impossible combination of settings with `world_size` ranks. Recipes add more."""
        return [
            *self._batch_problems(world_size),
            *self.parallel.problems(world_size),
            *self._start_problems(),
            *self._evaluation_problems(),
            *self._schedule_problems(),
            *unread(self),
        ]

    def _batch_problems(self, world_size: int) -> Iterator[str]:
        batch, micro = self.data.batch_size, self.data.microbatch_size
        if getattr(self.data, "microbatch_tokens", None) is not None:  # only some recipes have it
            if micro is not None:
                yield (
                    "data.microbatch_size and data.microbatch_tokens both define the size of a microbatch\n"
                    "  leave one out: data.microbatch_size=null, or data.microbatch_tokens=null"
                )
            if self.parallel.fit == "auto":
                yield (
                    "parallel.fit=auto and data.microbatch_tokens both define the size of a microbatch\n"
                    "  leave one out: parallel.fit=off, or data.microbatch_tokens=null"
                )
        if batch % world_size:
            advice = nearest_multiples(batch, world_size)
            yield f"a batch of {batch} examples cannot be split over {world_size} ranks\n  {advice}"
        elif micro is not None and (batch // world_size) % micro:
            unit = world_size * micro
            per_rank, advice = batch // world_size, nearest_multiples(batch, unit)
            yield Conflict(
                f"a batch of {batch} examples cannot be split over {world_size} ranks with microbatches of {micro}"
                f"\n  {batch} is not a multiple of {world_size} x {micro} = {unit}; {advice}",
                [("data.microbatch_size", max(n for n in range(1, micro + 1) if per_rank % n == 0))],
                "data.batch_size",
            )

    def _start_problems(self) -> Iterator[str]:
        """Yield problems among the settings of the start and the length of the run."""
        init, default = self.init, InitConfig()
        if self.init_from is None and init != default:
            name = next(name for name in InitConfig.model_fields if getattr(init, name) != getattr(default, name))
            yield f"init.{name} has an effect only together with init_from\n  leave it out, or set init_from=RUN"
        if init.restore == "all" and init != InitConfig(restore="all", step=init.step, data=init.data):
            yield (
                "init.restore=all continues with a complete state, so names and shapes cannot differ\n"
                "  leave out init.rename, grow, missing, unexpected and averaged, or set init.restore=weights"
            )
        second = self.optimizer.adafactor.step_offset if self.optimizer.name == "adafactor" else 0
        if second and init.restore != "all":
            yield (
                f"optimizer.adafactor.step_offset={second}, but the optimizer starts without the state of earlier "
                "updates, which are therefore not counted\n"
                "  leave it out: optimizer.adafactor.step_offset=0, or set init.restore=all"
            )
        offset, total = self.schedule.step_offset, self.num_steps if self.num_extra_steps is None else None
        if total is not None and self.first_step >= total:
            yield (
                f"num_steps={total} is reached before the run begins: {self.first_step} updates were made\n"
                "  num_steps includes them: increase it, or set num_extra_steps=N for N updates of this run"
            )
        if total is not None and offset >= total:
            yield (
                f"schedule.step_offset={offset} is not less than num_steps={total}, so the schedule never begins\n"
                "  num_steps includes the steps before the schedule: increase it, or use a smaller offset"
            )
        if self.num_steps is None and self.data.num_epochs is None and self.num_extra_steps is None:
            yield "neither num_steps nor data.num_epochs defines how long to train\n  set one of them"

    def _evaluation_problems(self) -> Iterator[str]:
        """Yield contradictory evaluation intervals, and uses of metrics that are never measured."""
        evaluate, best, stopping = self.evaluate, self.checkpoint.keep_best, self.evaluate.early_stopping
        if evaluate.every_steps is not None and evaluate.every_epochs is not None:
            yield Conflict(
                f"evaluate.every_steps={evaluate.every_steps} and evaluate.every_epochs={evaluate.every_epochs} both "
                "define when to evaluate\n  set only one of them",
                [("evaluate.every_steps", DEFAULT), ("evaluate.every_epochs", DEFAULT)],
            )
        if not self.has_held_out_data and not evaluate.probes:
            settings = [
                *([f"checkpoint.keep_best.metric={best.metric}"] if best is not None else []),
                *([f"evaluate.early_stopping.metric={stopping.metric}"] if stopping is not None else []),
                *(["evaluate.before_training=true"] if evaluate.before_training else []),
            ]
            for setting in settings:
                yield f"{setting}, but there is nothing to evaluate on\n  set held-out data: data.valid"
        elif stopping is not None and not self.evaluates_repeatedly:
            yield (
                f"evaluate.early_stopping.metric={stopping.metric} needs evaluations during training, "
                "but there are none\n  set evaluate.every_steps"
            )

    def _schedule_problems(self) -> Iterator[str]:
        schedule = self.schedule
        if schedule.warmup_share is not None and schedule.num_warmup_steps:
            yield Conflict(
                f"schedule.num_warmup_steps={schedule.num_warmup_steps} and "
                f"schedule.warmup_share={schedule.warmup_share} both define the warm-up\n  set only one of them",
                [("schedule.num_warmup_steps", DEFAULT), ("schedule.warmup_share", DEFAULT)],
            )
        if self.num_steps is not None:
            yield from self._phase_problems(self.num_steps)
        elif schedule.name == "wsd" and not schedule.num_decay_steps:
            yield (
                "schedule.name=wsd needs schedule.num_decay_steps of at least 1\n"
                "  usually it is a tenth of the run, such as schedule.num_decay_steps=100"
            )
        if schedule.name == "factors" and not schedule.factors:
            yield (
                "schedule.name=factors needs schedule.factors\n"
                "  name them, such as schedule.factors=[constant,linear_warmup,rsqrt_normalized_decay]"
            )

    def _phase_problems(self, num_steps: int) -> Iterator[str]:
        """Yield phases of the schedule that do not fit into the run. Phases that no user wrote become a tenth of it."""
        schedule, tenth = self.schedule, num_steps // 10
        num_warmup_steps = schedule.warmup_steps(num_steps)
        shorter_warmup = ("schedule.num_warmup_steps", tenth)
        if num_warmup_steps > num_steps and schedule.name != "factors":
            yield Conflict(
                f"schedule.num_warmup_steps {num_warmup_steps} is more than num_steps {num_steps}\n"
                f"  shorten the warm-up, such as schedule.num_warmup_steps={tenth}, or train longer",
                [shorter_warmup],
                *("num_steps", "schedule.name"),
            )
        shorter_decay = ("schedule.num_decay_steps", max(1, tenth))
        if schedule.name == "wsd" and not schedule.num_decay_steps:
            yield Conflict(
                "schedule.name=wsd needs schedule.num_decay_steps of at least 1\n"
                f"  usually it is a tenth of the run: schedule.num_decay_steps={max(1, tenth)}",
                [shorter_decay],
                "schedule.name",
            )
        num_ramp_steps = num_warmup_steps + schedule.num_decay_steps
        if schedule.name == "wsd" and num_ramp_steps > num_steps >= num_warmup_steps:
            shorter = [shorter_warmup, shorter_decay]
            yield Conflict(
                f"schedule.num_warmup_steps + schedule.num_decay_steps is {num_ramp_steps}, more than "
                f"num_steps = {num_steps}\n  shorten the warm-up or the decay, such as "
                f"schedule.num_warmup_steps={tenth} schedule.num_decay_steps={max(1, tenth)}, or train longer",
                shorter if num_warmup_steps > schedule.num_decay_steps else reversed(shorter),
                *("num_steps", "schedule.name"),
            )


def nearest_multiples(value: int, unit: int) -> str:
    """Return advice with the multiples of `unit` nearest to `value`, as values of data.batch_size."""
    below, above = value // unit * unit, -(-value // unit) * unit
    choices = [str(c) for c in (below, above) if c > 0]
    return f"nearest values that fit: data.batch_size={' or '.join(choices)}"
