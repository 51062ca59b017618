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
    """Store row and column means of large matrices instead of a full second moment."""
    min_dim_size_to_factor: PositiveInt = 128
    """Matrices whose smaller side is shorter than this keep a full second moment."""
    multiply_by_parameter_scale: bool = True
    """Make steps relative to the root mean square of the parameter; peak_lr is then a share of it."""
    max_parameter_scale: PositiveFloat | None = None
    """Upper limit of the root mean square of a parameter; null: no limit."""
    beta1: Rate | None = None
    """Decay of the momentum of the scaled updates; null: no momentum, which saves its memory."""
    decay_rate: PositiveFloat = 0.8
    """The second moment decays by 1 - t ** -decay_rate in update t = 1, 2, ..."""
    step_offset: NonNegativeInt = 0
    """With init.restore=all: number of earlier updates that the decay does not count, to restart it. A new state counts
    from its first update."""
    clipping_threshold: PositiveFloat = 1.0
    """Maximum root mean square of a tensor's update, before it is multiplied by the learning rate."""
    epsilon1: PositiveFloat = 1e-30
    """Number added to squared gradients."""
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
    """adamw: Adam with bias correction and decoupled weight decay. lamb: the same update with a trust ratio per tensor.
    sgd: SGD with momentum; weight decay is added to the gradient. lars: sgd with a trust ratio per tensor. adafactor:
    T5's version, which needs little memory and makes steps relative to the parameter. lion: the sign of a momentum.
    muon: the orthogonalized momentum of each matrix in the model's blocks; adamw for all other parameters. Query, key
    and value matrices that one layer stores together are treated as separate tensors, as are gate and value
    matrices."""
    peak_lr: PositiveFloat
    """Learning rate after warm-up."""
    beta1: Annotated[Rate, _HAS_MOMENTS] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[Rate, _HAS_MOMENTS] = 0.999
    """Decay of the second moment."""
    epsilon: Annotated[PositiveFloat, ReadBy("name", ("adamw", "lamb", "muon"))] = 1e-6
    """Number added to the root of the second moment."""
    momentum: Annotated[Rate, ReadBy("name", ("sgd", "lars", "muon"))] = 0.9
    """sgd, lars and muon only: decay of the momentum. Muon was published with 0.95."""
    nesterov: Annotated[bool, _IS_SGD] = False
    """sgd and lars only: use Nesterov momentum."""
    weight_decay: Annotated[NonNegativeFloat, ReadBy("name", ("adamw", "lamb", "sgd", "lars", "lion", "muon"))] = 0.01
    """Weight decay, multiplied by the learning rate. It is decoupled from the gradient, except with sgd and lars, which
    add it to the gradient. It has no effect with adafactor."""
    scale_by_parameter_rms: Annotated[bool, ReadBy("name", ("adamw",))] = False
    """adamw only: multiply each tensor's step by the tensor's root mean square, at least 0.001 (nanoT5)."""
    adafactor: Annotated[AdafactorConfig, ReadBy("name", ("adafactor",))] = AdafactorConfig()
    """adafactor only: further settings."""
    decay_mask: Literal["by_name", "by_ndim_compat", "all"] = "by_name"
    """Parameters with weight decay. by_name: all except biases, norms, temperatures, class tokens, and learned
    positions of vision transformers and CLIP. by_ndim_compat: as in Sabertooth of 2022, where query, key and value
    biases decay too. all: every parameter, as in ZeroVL."""
    groups: tuple[ParameterGroup, ...] = ()
    """Exceptions by parameter name. Several matching groups are merged; the last value of each field wins."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = None
    """Layer-wise decay of the learning rate, for pretrained weights (ELECTRA, Clark et al. 2020,
    https://arxiv.org/abs/2003.10555). The learning rate of the last block of each encoder is multiplied by this factor,
    that of each earlier block by one more factor, and that of the embeddings by yet one more. null: the same learning
    rate for all. It is multiplied with the factors of groups."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Maximum global gradient norm, to which larger gradients are scaled; 0: no clipping."""
    clip: Literal["norm", "squared_norm_legacy", "value"] = "norm"
    """norm: compare and divide by the gradient norm. squared_norm_legacy: by the squared norm (Sabertooth of 2021).
    value: limit each element of the gradient to -max_grad_norm ... max_grad_norm instead (optax.clip)."""

    def other_state(self, before: "OptimizerConfig") -> dict[str, tuple[Any, Any]]:
        """Map the dotted path of each setting that changes the optimizer's state to its values in `before` and here."""
        paths = ["name"]
        if self.name == before.name == "adafactor":
            paths += ["adafactor.factored", "adafactor.min_dim_size_to_factor"]
            if None in (self.adafactor.beta1, before.adafactor.beta1):
                paths += ["adafactor.beta1"]
        pairs = {f"optimizer.{path}": (attrgetter(path)(before), attrgetter(path)(self)) for path in paths}
        return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


_USUAL_LR = {"adamw": 1e-3, "lamb": 5e-3, "sgd": 0.1, "lars": 1.0, "adafactor": 1e-3, "lion": 1e-4, "muon": 2e-3}
"""Learning rates with about the same effect. Sources: the papers on Adam, LAMB, Lion (a tenth of AdamW's) and
Adafactor; docs/training.md for muon; sgd and lars with momentum 0.9."""
_USUAL_RELATIVE_LR = 1e-2
"""Usual learning rate of adamw and adafactor if steps are relative to the parameter (Shazeer & Stern 2018)."""


def usual_lr(optimizer: OptimizerConfig) -> float:
    """Return the usual learning rate of this optimizer, for conversion from another optimizer's rate."""
    factor_scale = optimizer.name == "adafactor" and optimizer.adafactor.multiply_by_parameter_scale
    is_relative = factor_scale or (optimizer.name == "adamw" and optimizer.scale_by_parameter_rms)
    return _USUAL_RELATIVE_LR if is_relative else _USUAL_LR[optimizer.name]


ScheduleFactor = Literal[
    "constant", "linear_warmup", "rsqrt_decay", "rsqrt_normalized_decay", "decay_every", "cosine_decay", "linear_decay"
]


class ScheduleConfig(Config):
    """Schedule of the learning rate, as a share of peak_lr by update index t = 0, 1, ... The warm-up is linear from 0,
    so update 0 has learning rate 0 if num_warmup_steps > 0."""

    name: Literal["linear", "cosine", "inverse_sqrt", "wsd", "constant", "factors"] = "linear"
    """linear: decay to floor at num_steps. cosine: the same along a cosine. inverse_sqrt: peak x sqrt(warmup / t). wsd:
    constant, then decay to floor over the last num_decay_steps, as 1 - sqrt(share of these steps). constant: no decay
    after the warm-up. factors: T5X's product of named factors; warm-up only as one of the factors."""
    num_warmup_steps: NonNegativeInt = 0
    """Number of warm-up updates until peak_lr is reached."""
    warmup_share: Rate | None = None
    """Share of num_steps to use for warm-up, instead of num_warmup_steps; rounded down."""
    floor: Annotated[Rate, _ENDS_AT_FLOOR] = 0.0
    """Share of peak_lr at the end of the decay (cosine, linear, wsd)."""
    num_decay_steps: Annotated[NonNegativeInt, ReadBy("name", ("wsd",))] = 0
    """wsd only: number of updates of the final decay."""
    factors: Annotated[tuple[ScheduleFactor, ...], _HAS_FACTORS] = ()
    """factors only: the factors to multiply, with s = t - step_offset and w = num_warmup_steps. T5X's form "a * b" is
    accepted too. constant: peak_lr. linear_warmup: min(1, s / w). rsqrt_decay: 1 / sqrt(max(s, w)).
    rsqrt_normalized_decay: rsqrt_decay x sqrt(w). decay_every: decay_factor ** (s // steps_per_decay). cosine_decay:
    half a cosine from 1 to 0 in each steps_per_cycle after w. linear_decay: peak_lr x min(s / w, 1 + decay_factor x (w
    - s))."""
    decay_factor: Annotated[NonNegativeFloat, _HAS_FACTORS] = 0.5
    """factors only: factor in decay_every and linear_decay."""
    steps_per_decay: Annotated[PositiveInt, _HAS_FACTORS] = 20_000
    """factors only: number of updates between two cuts of decay_every."""
    steps_per_cycle: Annotated[PositiveInt, _HAS_FACTORS] = 100_000
    """factors only: number of updates of one cosine."""
    step_offset: NonNegativeInt = 0
    """Number of updates before the schedule starts. They use the learning rate of its update 0."""
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
        return int(num_steps * self.warmup_share + 1e-9)  # 0.29 * 100 is slightly below 29 in floating point
