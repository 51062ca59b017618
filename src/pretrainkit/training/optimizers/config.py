"""Settings of the optimizer and of the learning rate schedule. This module does not import torch."""

from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from pretrainkit.config.base import Config, ReadBy
from pretrainkit.config.fields import NonNegativeFloat, Pattern, Rate


class ParameterGroup(Config):
    """Parameters with their own learning rate or weight decay."""

    pattern: Pattern
    """Regular expression to search for in parameter names, such as bias|pos_embed; at least one must match."""
    lr_scale: NonNegativeFloat | None = None
    """Factor of the learning rate; null: the factor of an earlier matching group, or 1."""
    weight_decay: NonNegativeFloat | None = None
    """Weight decay instead of optimizer.weight_decay or 0; null: as without this group."""


class AdafactorConfig(Config):
    """Settings of Adafactor. The defaults are those of T5X."""

    factored: bool = True
    """Keep row and column means of large matrices in place of a full second moment."""
    min_dim_size_to_factor: PositiveInt = 128
    """Matrices whose smaller side is shorter keep a full second moment."""
    multiply_by_parameter_scale: bool = True
    """Steps are relative to the root mean square of the parameter, and peak_lr is a share of it."""
    max_parameter_scale: PositiveFloat | None = None
    """Upper limit of the root mean square of a parameter; null: no limit."""
    beta1: Rate | None = None
    """Decay of a momentum of the scaled updates; null: none, and no memory for it."""
    decay_rate: PositiveFloat = 0.8
    """The second moment decays by 1 - t ** -decay_rate in update t = 1, 2, ..."""
    step_offset: NonNegativeInt = 0
    """Number of earlier updates that the decay does not count, to restart the decay from a checkpoint."""
    clipping_threshold: PositiveFloat = 1.0
    """Maximum root mean square of a tensor's update, before it is multiplied by the learning rate."""
    epsilon1: PositiveFloat = 1e-30
    """Added to squared gradients."""
    epsilon2: PositiveFloat = 1e-3
    """Lower limit of the root mean square of a parameter, so that a parameter of zeros can change."""
    weight_decay_rate: Rate | None = None
    """Weight decay per step, independent of the learning rate and used instead of optimizer.weight_decay; null: 0, or 1
    if weight_decay_lr_exponent is positive. T5X applies weight decay to all parameters: decay_mask=all."""
    weight_decay_lr_exponent: NonNegativeFloat | None = None
    """Multiply weight_decay_rate by the learning rate to this power; null: weight_decay_rate alone."""
    skip_nan_updates: bool = False
    """Do not change elements whose update is NaN. The trainer already skips whole steps: see max_skipped_steps."""

    @property
    def decay_rate_of_parameters(self) -> float:
        """Value of weight_decay_rate, or its default, which depends on the exponent."""
        if self.weight_decay_rate is not None:
            return self.weight_decay_rate
        return 1.0 if self.weight_decay_lr_exponent else 0.0


_HAS_MOMENTS = ReadBy("name", ("adamw", "lamb", "lion", "muon"))
_IS_SGD = ReadBy("name", ("sgd", "lars"))
_ENDS_AT_FLOOR = ReadBy("name", ("linear", "cosine", "wsd"))
_HAS_FACTORS = ReadBy("name", ("factors",))


class OptimizerConfig(Config):
    """Optimizer, weight decay and gradient clipping."""

    name: Literal["adamw", "lamb", "sgd", "lars", "adafactor", "lion", "muon"] = "adamw"
    """adamw: Adam with bias correction and decoupled decay. lamb: the same update with a trust ratio per tensor. sgd:
    with momentum; the decay is added to the gradient. lars: sgd with a trust ratio per tensor. adafactor: T5's version,
    with little memory and steps relative to the parameter. lion: the sign of a momentum. muon: the orthogonalized
    momentum of each matrix in the model's blocks; adamw for all other parameters. Query, key and value matrices that
    one layer stores together are treated as separate tensors, as are gate and value."""
    peak_lr: PositiveFloat
    """Learning rate after warm-up."""
    beta1: Annotated[Rate, _HAS_MOMENTS] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[Rate, _HAS_MOMENTS] = 0.999
    """Decay of the second moment."""
    epsilon: Annotated[PositiveFloat, ReadBy("name", ("adamw", "lamb", "muon"))] = 1e-6
    """Added to the root of the second moment."""
    momentum: Annotated[Rate, ReadBy("name", ("sgd", "lars", "muon"))] = 0.9
    """sgd, lars and muon only: decay of the momentum. Muon was published with 0.95."""
    nesterov: Annotated[bool, _IS_SGD] = False
    """sgd and lars only: look ahead along the momentum."""
    weight_decay: Annotated[NonNegativeFloat, ReadBy("name", ("adamw", "lamb", "sgd", "lars", "lion", "muon"))] = 0.01
    """Decoupled weight decay, multiplied by the learning rate. It has no effect with adafactor."""
    scale_by_parameter_rms: Annotated[bool, ReadBy("name", ("adamw",))] = False
    """adamw only: multiply each tensor's step by its root mean square, at least 0.001 (nanoT5)."""
    adafactor: Annotated[AdafactorConfig, ReadBy("name", ("adafactor",))] = AdafactorConfig()
    """adafactor only: its settings."""
    decay_mask: Literal["by_name", "by_ndim_compat", "all"] = "by_name"
    """by_name: all but biases, norms, temperatures, class tokens and learned positions of vision transformers and CLIP
    decay. by_ndim_compat: Sabertooth of 2022, where query, key and value
    biases decay too. all: every parameter, as in ZeroVL."""
    groups: tuple[ParameterGroup, ...] = ()
    """Exceptions by parameter name. Several matching groups are merged; the last value of each field wins."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = None
    """Layer-wise decay of the learning rate, for weights that were trained before (ELECTRA, Clark et al. 2020,
    https://arxiv.org/abs/2003.10555): the last block of each encoder learns with this factor, each one before it with
    one factor more, and embeddings with the smallest; null: all learn alike. Multiplies the factors of groups."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Clip the global gradient norm to this; 0: no clipping."""
    clip: Literal["norm", "squared_norm_legacy"] = "norm"
    """squared_norm_legacy: Sabertooth of 2021, which compared and divided by the squared norm."""

    def other_state(self, before: "OptimizerConfig") -> dict[str, tuple[Any, Any]]:
        """Map the dotted path of each setting that changes the optimizer's state to its value in `before` and here."""
        paths = ["name"]
        if self.name == before.name == "adafactor":
            paths += ["adafactor.factored", "adafactor.min_dim_size_to_factor"]
            if None in (self.adafactor.beta1, before.adafactor.beta1):
                paths += ["adafactor.beta1"]
        pairs = {f"optimizer.{path}": (attrgetter(path)(before), attrgetter(path)(self)) for path in paths}
        return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


_USUAL_LR = {"adamw": 1e-3, "lamb": 5e-3, "sgd": 0.1, "lars": 1.0, "adafactor": 1e-3, "lion": 1e-4, "muon": 2e-3}
"""Learning rates of about equal effect. Sources: the papers of Adam, LAMB, Lion (a tenth of AdamW's) and Adafactor;
docs/training.md of muon; sgd and lars with momentum 0.9."""
_USUAL_RELATIVE_LR = 1e-2
"""Usual rate of adamw and adafactor with steps relative to the parameter (Shazeer & Stern 2018)."""


def usual_lr(optimizer: OptimizerConfig) -> float:
    """Return the usual learning rate of this optimizer, for conversion from another optimizer's rate."""
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
    """Number of warm-up updates until peak_lr is reached."""
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
    """factors only: factor of decay_every and linear_decay."""
    steps_per_decay: Annotated[PositiveInt, _HAS_FACTORS] = 20_000
    """factors only: updates between two cuts of decay_every."""
    steps_per_cycle: Annotated[PositiveInt, _HAS_FACTORS] = 100_000
    """factors only: updates of one cosine."""
    step_offset: NonNegativeInt = 0
    """Restart the schedule: step_offset and all earlier updates count as the first update."""
    min_lr: Annotated[NonNegativeFloat, _HAS_FACTORS] = 1e-8
    """factors only: lower limit of the learning rate."""

    @field_validator("factors", mode="before")
    @classmethod
    def _split_factors(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split("*")) if isinstance(value, str) else value

    @property
    def largest_factor(self) -> float:
        """Maximum factor of peak_lr: 1, except with rsqrt_decay, which is not normalized."""
        is_small = self.name == "factors" and "rsqrt_decay" in self.factors
        return max(self.num_warmup_steps, 1) ** -0.5 if is_small else 1.0

    def warmup_steps(self, num_steps: int) -> int:
        """Return the number of warm-up updates in a run of `num_steps`."""
        if self.warmup_share is None:
            return self.num_warmup_steps
        return int(num_steps * self.warmup_share + 1e-9)  # 0.07 * 100 is 7.000000000000001, 0.29 * 100 below 29
