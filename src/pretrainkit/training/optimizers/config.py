"""How gradients become updates, and the learning rate over time. Torch-free."""

from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from pretrainkit.config.base import Config, ReadBy
from pretrainkit.config.fields import NonNegativeFloat, Pattern, Rate


class ParameterGroup(Config):
    """Parameters that are updated in another way than the rest."""

    pattern: Pattern
    """Regular expression that is found in their names, such as bias|pos_embed; at least one parameter must fit."""
    lr_scale: NonNegativeFloat | None = None
    """Factor of the learning rate; null: as without this group, which is 1 or that of an earlier group."""
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
    """Share of the parameters that decay which each step takes away, whatever the learning rate; null: none, or 1 where
    weight_decay_lr_exponent is positive. It stands in for optimizer.weight_decay. T5X lets all parameters decay:
    decay_mask=all."""
    weight_decay_lr_exponent: NonNegativeFloat | None = None
    """That share is weight_decay_rate x learning rate to this power; null: weight_decay_rate itself."""
    skip_nan_updates: bool = False
    """Leave elements as they were whose update is no number. The loop already skips whole steps: see
    max_skipped_steps."""

    @property
    def decay_rate_of_parameters(self) -> float:
        """weight_decay_rate, or what it is where only the exponent is given."""
        if self.weight_decay_rate is not None:
            return self.weight_decay_rate
        return 1.0 if self.weight_decay_lr_exponent else 0.0


_HAS_MOMENTS = ReadBy("name", ("adamw", "lamb", "lion", "muon"))
_IS_SGD = ReadBy("name", ("sgd", "lars"))
_ENDS_AT_FLOOR = ReadBy("name", ("linear", "cosine", "wsd"))
_HAS_FACTORS = ReadBy("name", ("factors",))


class OptimizerConfig(Config):
    """How gradients become updates."""

    name: Literal["adamw", "lamb", "sgd", "lars", "adafactor", "lion", "muon"] = "adamw"
    """adamw: Adam with bias correction and decoupled decay. lamb: the same update with a trust ratio per tensor. sgd:
    with momentum; the decay is added to the gradient. lars: sgd with a trust ratio per tensor. adafactor: T5's, with
    little memory and steps relative to the parameter. lion: the sign of a momentum. muon: the momentum of each matrix
    in the model's blocks, made orthogonal; adamw for all other parameters. Queries, keys and values count as tensors of
    their own where one layer stores them together, and so do gate and value."""
    peak_lr: PositiveFloat
    """Learning rate after warm-up."""
    beta1: Annotated[Rate, _HAS_MOMENTS] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[Rate, _HAS_MOMENTS] = 0.999
    """Decay of the second moment."""
    epsilon: Annotated[PositiveFloat, ReadBy("name", ("adamw", "lamb", "muon"))] = 1e-6
    """Added to the root of the second moment."""
    momentum: Annotated[Rate, ReadBy("name", ("sgd", "lars", "muon"))] = 0.9
    """sgd, lars and muon only: how much of the last update stays. Muon was published with 0.95."""
    nesterov: Annotated[bool, _IS_SGD] = False
    """sgd and lars only: look ahead along the momentum."""
    weight_decay: Annotated[NonNegativeFloat, ReadBy("name", ("adamw", "lamb", "sgd", "lars", "lion", "muon"))] = 0.01
    """Decoupled, multiplied by the learning rate. Not read by adafactor."""
    scale_by_parameter_rms: Annotated[bool, ReadBy("name", ("adamw",))] = False
    """adamw only: multiply each tensor's step by its root mean square, at least 0.001 (nanoT5)."""
    adafactor: Annotated[AdafactorConfig, ReadBy("name", ("adafactor",))] = AdafactorConfig()
    """adafactor only."""
    decay_mask: Literal["by_name", "by_ndim_compat", "all"] = "by_name"
    """by_name: all but biases, norms, temperatures, class tokens and learned positions of vision transformers and CLIP
    decay. by_ndim_compat: Sabertooth of 2022, where query, key and value
    biases decay too. all: every parameter, as in ZeroVL."""
    groups: tuple[ParameterGroup, ...] = ()
    """Exceptions by name; where several fit a parameter they are merged, and of each field the last value counts."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Clip the global gradient norm to this; 0: no clipping."""
    clip: Literal["norm", "squared_norm_legacy"] = "norm"
    """squared_norm_legacy: Sabertooth of 2021, which compared and divided by the squared norm."""

    def other_state(self, before: "OptimizerConfig") -> dict[str, tuple[Any, Any]]:
        """Dotted path of each setting because of which `before` kept another state, to its value there and here."""
        paths = ["name"]
        if self.name == before.name == "adafactor":
            paths += ["adafactor.factored", "adafactor.min_dim_size_to_factor"]
            if None in (self.adafactor.beta1, before.adafactor.beta1):
                paths += ["adafactor.beta1"]
        pairs = {f"optimizer.{path}": (attrgetter(path)(before), attrgetter(path)(self)) for path in paths}
        return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


_USUAL_LR = {"adamw": 1e-3, "lamb": 5e-3, "sgd": 0.1, "lars": 1.0, "adafactor": 1e-3, "lion": 1e-4, "muon": 2e-3}
"""What does about the same to one model. Sources: the papers of Adam, LAMB, Lion (a tenth of AdamW's) and Adafactor;
docs/training.md of muon; sgd and lars with momentum 0.9."""
_USUAL_RELATIVE_LR = 1e-2
"""Of steps that are a share of the parameter, of adamw and adafactor (Shazeer & Stern 2018)."""


def usual_lr(optimizer: OptimizerConfig) -> float:
    """The usual learning rate of this optimiser, to convert that of another one."""
    factor_scale = optimizer.name == "adafactor" and optimizer.adafactor.multiply_by_parameter_scale
    is_relative = factor_scale or (optimizer.name == "adamw" and optimizer.scale_by_parameter_rms)
    return _USUAL_RELATIVE_LR if is_relative else _USUAL_LR[optimizer.name]


ScheduleFactor = Literal[
    "constant", "linear_warmup", "rsqrt_decay", "rsqrt_normalized_decay", "decay_every", "cosine_decay", "linear_decay"
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
    floor: Annotated[Rate, _ENDS_AT_FLOOR] = 0.0
    """Share of peak_lr at the end (cosine, linear, wsd)."""
    num_decay_steps: Annotated[NonNegativeInt, ReadBy("name", ("wsd",))] = 0
    """wsd only: updates of the final decay."""
    factors: Annotated[tuple[ScheduleFactor, ...], _HAS_FACTORS] = ()
    """factors only: what is multiplied, with s = t - step_offset and w = num_warmup_steps; T5X's "a * b" is read too.
    constant: peak_lr. linear_warmup: min(1, s / w). rsqrt_decay: 1 / sqrt(max(s, w)). rsqrt_normalized_decay: the same
    x sqrt(w). decay_every: decay_factor ** (s // steps_per_decay). cosine_decay: half a cosine from 1 to 0 over each
    steps_per_cycle after w. linear_decay: peak_lr x min(s / w, 1 + decay_factor x (w - s))."""
    decay_factor: Annotated[NonNegativeFloat, _HAS_FACTORS] = 0.5
    """factors only: of decay_every and linear_decay."""
    steps_per_decay: Annotated[PositiveInt, _HAS_FACTORS] = 20_000
    """factors only: updates between two cuts of decay_every."""
    steps_per_cycle: Annotated[PositiveInt, _HAS_FACTORS] = 100_000
    """factors only: updates of one cosine."""
    step_offset: NonNegativeInt = 0
    """Start the schedule anew: update step_offset counts as the first, and so do those before."""
    min_lr: Annotated[NonNegativeFloat, _HAS_FACTORS] = 1e-8
    """factors only: the learning rate is never lower."""

    @field_validator("factors", mode="before")
    @classmethod
    def _split_factors(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split("*")) if isinstance(value, str) else value

    @property
    def largest_factor(self) -> float:
        """What peak_lr is multiplied by at most: 1, but for the factor rsqrt_decay, which is not normalised."""
        is_small = self.name == "factors" and "rsqrt_decay" in self.factors
        return max(self.num_warmup_steps, 1) ** -0.5 if is_small else 1.0

    def warmup_steps(self, num_steps: int) -> int:
        """Updates of the warm-up in a run of `num_steps`."""
        if self.warmup_share is None:
            return self.num_warmup_steps
        return int(num_steps * self.warmup_share + 1e-9)  # 0.07 * 100 is 7.000000000000001, 0.29 * 100 below 29
