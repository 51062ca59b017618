"""The root config: one run of one recipe. Torch-free.

A recipe subclasses `RunConfig` and narrows `model`, `objective` and `data` to its own classes.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, SerializeAsAny

from pretrainkit.config.base import DEFAULT, Config, Conflict, ReadBy, unread
from pretrainkit.config.fields import Pattern
from pretrainkit.config.paths import IsPath
from pretrainkit.errors import ConfigError
from pretrainkit.training.data_config import DataConfig
from pretrainkit.training.evaluate_config import EvaluateConfig
from pretrainkit.training.optimizers.config import OptimizerConfig, ScheduleConfig, usual_lr


class PrecisionConfig(Config):
    """Number formats. Master weights and optimiser state are always float32."""

    compute: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on GPUs that have it, on back ends out of torch's tree that name it, and on CPUs with AVX512_BF16
    or AMX, else float32. float16 scales the loss."""
    matmul_tf32: bool = True
    """Let float32 matrix products use TF32 on GPUs that have it."""
    residual: Literal["auto", "float32", "compute"] = "auto"
    """Number format of the sums between the layers of a block, which a GPU reads and writes most. compute: that of
    `compute`, with norms, logits and losses in float32; T5 always computes so, as T5X does. auto: compute on GPUs in
    bfloat16, else float32."""


class ParallelConfig(Config):
    """How the model is spread. The number of ranks is the launcher's."""

    strategy: Literal["auto", "ddp", "fsdp2", "hsdp"] = "auto"
    """ddp: the whole model on every rank. fsdp2: a shard of it on each. hsdp: fsdp2 within a group of ranks, copies in
    the other groups, so that weights travel within a machine and only gradients between machines. auto: ddp when there
    is more than one rank."""
    shard_ranks: Annotated[Annotated[int, Field(ge=2)] | None, ReadBy("strategy", ("hsdp",))] = None
    """Of hsdp: neighbouring ranks that hold one copy together; null: the ranks of a machine."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile of each block, of the loss of heads over a vocabulary and of CLIP's contrastive loss. auto: on for
    CUDA, where the run has at least 1,000 updates; off for CPU and shorter runs, where it costs more than it gives."""
    fit: Literal["off", "auto"] = "off"
    """auto: where a microbatch does not fit into the memory of its device, set data.microbatch_size to the largest that
    does, by the estimate of `pretrainkit plan`. Gradients stay the same, but for rounding."""
    activation_checkpointing: bool = False
    """Recompute each block in the backward pass instead of storing its activations."""

    @property
    def is_sharded(self) -> bool:
        """Whether a rank keeps only a part of each parameter."""
        return self.strategy in ("fsdp2", "hsdp")

    def require_ranks(self, world_size: int) -> None:
        """Raises ConfigError where so few ranks have nothing to spread: before they start."""
        if self.is_sharded and world_size == 1:
            raise ConfigError(
                f"parallel.strategy={self.strategy} needs more than one rank\n  start with --launch local --nproc 2"
            )

    def problems(self, world_size: int) -> list[str]:
        """What cannot work on so many ranks, each as a message."""
        shards = self.shard_ranks if self.strategy == "hsdp" else None
        if shards is not None and world_size > 1 and world_size % shards:
            divisors = [str(size) for size in range(2, world_size + 1) if world_size % size == 0]
            return [
                f"{world_size} ranks cannot be grouped by parallel.shard_ranks={shards}\n"
                f"  start a multiple of {shards}, or set parallel.shard_ranks to one of: {', '.join(divisors)}"
            ]
        return []


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
    def has_held_out_examples(self) -> bool:
        """Whether there are held-out examples to show; what is held out may be classes of images alone, which are
        none."""
        named = self.data.model_dump(include={*self.data.held_out_fields}).values()
        return self.has_held_out_data and any(named)

    @property
    def trained_length(self) -> int | None:
        """Most tokens of an example in training, which is how far positions are trained; None: it is not counted in
        tokens, or positions have no end."""
        return None

    @property
    def evaluates_repeatedly(self) -> bool:
        """Whether held-out data is looked at while training goes on."""
        evaluate = self.evaluate
        has_probes = any(probe.every_steps is not None for probe in evaluate.probes)
        return evaluate.every_steps is not None or evaluate.every_epochs is not None or has_probes

    def conflicts(self) -> list[Conflict]:
        """Problems that are solved when a value gives way that no user wrote."""
        return [problem for problem in self.problems() if isinstance(problem, Conflict)]

    def unsuited(self, preset: "RunConfig") -> Iterator[Conflict]:
        """The learning rate of a preset, and that it clips nothing, where the optimiser is another one."""
        mine, old = self.optimizer, preset.optimizer
        is_rsqrt = self.schedule.largest_factor < 1, preset.schedule.largest_factor < 1
        factor = preset.schedule.largest_factor / self.schedule.largest_factor if len(set(is_rsqrt)) > 1 else 1.0
        factor *= usual_lr(mine) / usual_lr(old)
        if factor != 1 and mine.peak_lr == old.peak_lr:
            yield Conflict(
                f"optimizer.peak_lr={old.peak_lr:g} was chosen for another optimiser or schedule",
                [("optimizer.peak_lr", float(f"{old.peak_lr * factor:.2g}"))],
                *("optimizer.name", "optimizer.scale_by_parameter_rms"),
                *("optimizer.adafactor.multiply_by_parameter_scale", "schedule.name", "schedule.factors"),
            )
        if mine.name != old.name == "adafactor" and mine.max_grad_norm == 0:  # which cuts updates down by itself
            yield Conflict("nothing clips the gradients", [("optimizer.max_grad_norm", DEFAULT)], "optimizer.name")

    def problems(self, world_size: int = 1) -> list[str]:
        """Combinations of settings that cannot work on so many ranks, each as a message. Recipes add their own."""
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
        if getattr(self.data, "microbatch_tokens", None) is not None:  # of some recipes
            if micro is not None:
                yield (
                    "data.microbatch_size and data.microbatch_tokens both say how large a microbatch is\n"
                    "  leave one out: data.microbatch_size=null, or data.microbatch_tokens=null"
                )
            if self.parallel.fit == "auto":
                yield (
                    "parallel.fit=auto and data.microbatch_tokens both say how large a microbatch is\n"
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
        """Settings of where the run begins and how long it is that cannot work together."""
        init, default = self.init, InitConfig()
        if self.init_from is None and init != default:
            name = next(name for name in InitConfig.model_fields if getattr(init, name) != getattr(default, name))
            yield f"init.{name} is only read where there is an init_from\n  leave it out, or give init_from=RUN"
        if init.restore == "all" and init != InitConfig(restore="all", step=init.step, data=init.data):
            yield (
                "init.restore=all goes on with a whole state, so names and shapes cannot differ\n"
                "  leave out init.rename, grow, missing, unexpected and averaged, or set init.restore=weights"
            )
        offset, total = self.schedule.step_offset, self.num_steps if self.num_extra_steps is None else None
        if total is not None and self.first_step >= total:
            yield (
                f"num_steps={total} is reached before the run begins: {self.first_step} updates were made\n"
                "  num_steps counts them: give more, or num_extra_steps=N for N updates of this run"
            )
        if total is not None and offset >= total:
            yield (
                f"schedule.step_offset={offset} is not before num_steps={total}: the schedule never begins\n"
                "  num_steps counts the steps before it as well; give more, or a smaller offset"
            )
        if self.num_steps is None and self.data.num_epochs is None and self.num_extra_steps is None:
            yield "neither num_steps nor data.num_epochs says how long to train\n  set one of them"

    def _evaluation_problems(self) -> Iterator[str]:
        """Two times to evaluate at, and decisions on metrics that nobody measures."""
        evaluate, best, stopping = self.evaluate, self.checkpoint.keep_best, self.evaluate.early_stopping
        if evaluate.every_steps is not None and evaluate.every_epochs is not None:
            yield Conflict(
                f"evaluate.every_steps={evaluate.every_steps} and evaluate.every_epochs={evaluate.every_epochs} both "
                "say when to evaluate\n  give one of them",
                [("evaluate.every_steps", DEFAULT), ("evaluate.every_epochs", DEFAULT)],
            )
        if not self.has_held_out_data and not evaluate.probes:
            asked = [
                *([f"checkpoint.keep_best.metric={best.metric}"] if best is not None else []),
                *([f"evaluate.early_stopping.metric={stopping.metric}"] if stopping is not None else []),
                *(["evaluate.before_training=true"] if evaluate.before_training else []),
            ]
            for one in asked:
                yield f"{one}, but there is nothing to evaluate on\n  give held-out data: data.valid"
        elif stopping is not None and not self.evaluates_repeatedly:
            yield (
                f"evaluate.early_stopping.metric={stopping.metric} needs evaluations while training, "
                "and there are none\n  set evaluate.every_steps"
            )

    def _schedule_problems(self) -> Iterator[str]:
        schedule = self.schedule
        if schedule.warmup_share is not None and schedule.num_warmup_steps:
            yield Conflict(
                f"schedule.num_warmup_steps={schedule.num_warmup_steps} and "
                f"schedule.warmup_share={schedule.warmup_share} both set the warm-up\n  give one of them",
                [("schedule.num_warmup_steps", DEFAULT), ("schedule.warmup_share", DEFAULT)],
            )
        if self.num_steps is not None:
            yield from self._phase_problems(self.num_steps)
        elif schedule.name == "wsd" and not schedule.num_decay_steps:
            yield (
                "schedule.name=wsd needs schedule.num_decay_steps of at least 1\n"
                "  a tenth of the run is usual, such as schedule.num_decay_steps=100"
            )
        if schedule.name == "factors" and not schedule.factors:
            yield (
                "schedule.name=factors needs schedule.factors\n"
                "  name them, such as schedule.factors=[constant,linear_warmup,rsqrt_normalized_decay]"
            )

    def _phase_problems(self, num_steps: int) -> Iterator[str]:
        """Phases of the schedule that do not fit into the run. Those that nobody wrote become a tenth of it."""
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
                f"  a tenth of the run is usual: schedule.num_decay_steps={max(1, tenth)}",
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
    """The advice after 'not a multiple': the nearest values of data.batch_size that are."""
    below, above = value // unit * unit, -(-value // unit) * unit
    choices = [str(c) for c in (below, above) if c > 0]
    return f"nearest that fit: data.batch_size={' or '.join(choices)}"
