"""Chains of optax's gradient transformations, as T5X's gin files name them, read as settings of `optimizer` and
`schedule`.

A chain is clipping, then one optimizer, whole (adamw) or in its parts (scale_by_adam, add_decayed_weights,
scale_by_learning_rate). Source: https://github.com/google-deepmind/optax
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MOMENTS = {"b1": "beta1", "b2": "beta2"}
_WHOLE: Mapping[str, tuple[str, Mapping[str, str], Mapping[str, Any]]] = {
    "adam": ("adamw", _MOMENTS | {"eps": "epsilon"}, {"epsilon": 1e-8, "weight_decay": 0.0}),
    "adamw": (
        "adamw",
        _MOMENTS | {"eps": "epsilon", "weight_decay": "weight_decay"},
        {"epsilon": 1e-8, "weight_decay": 1e-4},
    ),
    "lamb": (
        "lamb",
        _MOMENTS | {"eps": "epsilon", "weight_decay": "weight_decay"},
        {"epsilon": 1e-6, "weight_decay": 0.0},
    ),
    "lion": ("lion", _MOMENTS | {"weight_decay": "weight_decay"}, {"beta2": 0.99, "weight_decay": 1e-3}),
    "sgd": ("sgd", {"momentum": "momentum", "nesterov": "nesterov"}, {"momentum": 0.0, "weight_decay": 0.0}),
}
"""Maps an optimizer of optax to (our optimizer, our fields by its arguments, its defaults where ours differ)."""
_SCALED = {
    "scale_by_adam": ("adamw", _MOMENTS | {"eps": "epsilon"}, {"epsilon": 1e-8}),
    "scale_by_lion": ("lion", _MOMENTS, {"beta2": 0.99}),
    "trace": ("sgd", {"decay": "momentum", "nesterov": "nesterov"}, {}),
    "identity": ("sgd", {}, {"momentum": 0.0}),
}
"""The same for the part of an optimizer that scales gradients."""
_NEUTRAL = {"eps_root": (0.0,), "mu_dtype": (None, "float32"), "mask": (None,), "accumulator_dtype": (None, "float32")}
"""Maps arguments to the values with which they change nothing."""
_OF_SCHEDULES = (
    *("init_value", "peak_value", "value", "end_value", "alpha", "exponent"),
    *("warmup_steps", "decay_steps", "transition_steps", "transition_begin"),
)
_CLIPS = {"clip_by_global_norm": ("norm", "max_norm"), "clip": ("value", "max_delta")}
FUNCTIONS = frozenset({"chain", *_WHOLE, *_SCALED, *_CLIPS})
"""Names of the functions that make an optimizer."""


class NoCounterpart(Exception):
    """A part of a chain that cannot be expressed; the text names it."""


class OptaxChain:
    def __init__(self, arguments: Callable[[str], dict[str, Any]], names: Sequence[str], num_steps: int | None) -> None:
        """
        Args:
            arguments: Function from the name of a function of optax to the arguments that are set for it.
            names: The transformations, in order.
            num_steps: Number of updates of the run. Our decays end with the run.
        """
        self._arguments, self._names, self._num_steps = arguments, list(names), num_steps

    def optimizer(self) -> tuple[dict[str, Any], Any]:
        """Return the settings of `optimizer` except for the learning rate, which is returned unchanged: a number, or
        a reference to a schedule. Raises NoCounterpart."""
        # By default, optax decays all weights and clips nothing.
        settings: dict[str, Any] = {"decay_mask": "all", "max_grad_norm": 0.0}
        if self._names and self._names[0] in _CLIPS:
            name = self._names.pop(0)
            settings["clip"], limit = _CLIPS[name]
            settings["max_grad_norm"] = float(self._read(name, {limit: limit})[limit])
        if not self._names:
            raise NoCounterpart("the chain has no optimizer")
        name = self._names.pop(0)
        if name in _WHOLE:
            ours, fields, defaults = _WHOLE[name]
            given = self._read(name, {**fields, "learning_rate": "learning_rate"})
            rate = given.pop("learning_rate", None)
        elif name in _SCALED:
            ours, fields, defaults = _SCALED[name]
            given = {"weight_decay": 0.0} | self._read(name, fields)
            if self._names[:1] == ["add_decayed_weights"] and ours != "sgd":
                given |= self._read(self._names.pop(0), {"weight_decay": "weight_decay"})
            rate = self._rate()
        else:
            raise NoCounterpart(f"{name} is not supported at this position of a chain")
        if self._names:
            raise NoCounterpart(f"{self._names[0]} is not supported at this position of a chain")
        if rate is None:
            raise NoCounterpart(f"{name} has no learning_rate")
        given = {field: value for field, value in given.items() if value is not None}
        return {"name": ours, **settings, **defaults, **given}, rate

    def _rate(self) -> Any:
        """Return the learning rate from the last part of a chain."""
        name = self._names.pop(0) if self._names else ""
        if name == "scale_by_learning_rate":
            return self._read(name, {"learning_rate": "learning_rate"}).get("learning_rate")
        if name == "scale_by_schedule" and self._names[:1] == ["scale"]:
            rate = self._read(name, {"step_size_fn": "rate"}).get("rate")
            if self._read(self._names.pop(0), {"step_size": "factor"}).get("factor") == -1:
                return rate
        elif name == "scale":
            factor = self._read(name, {"step_size": "factor"}).get("factor", 0)
            if factor < 0:
                return -factor
        raise NoCounterpart("the chain does not end in scale_by_learning_rate, or scale by a negative number")

    def schedule(self, rate: Any) -> tuple[float, dict[str, Any]]:
        """Return the peak learning rate and the settings of `schedule`. Raises NoCounterpart.

        Args:
            rate: From `optimizer`.
        """
        if isinstance(rate, int | float):
            return float(rate), {"name": "constant", "num_warmup_steps": 0, "factors": ()}
        name = rate.name
        given = self._read(name, {argument: argument for argument in _OF_SCHEDULES})
        end: Any = 0.0
        warmup, decay_steps, kind = int(given.get("warmup_steps", 0)), None, "constant"
        if name == "constant_schedule":
            peak = given.get("value")
        elif name in ("warmup_cosine_decay_schedule", "warmup_constant_schedule"):
            peak = given.get("peak_value")
            if given.get("init_value"):
                raise NoCounterpart(f"{name}.init_value={given['init_value']}: a warm-up begins at 0")
            if name.startswith("warmup_cosine"):
                kind, decay_steps, end = "cosine", given.get("decay_steps"), given.get("end_value", 0.0)
        elif name == "cosine_decay_schedule":
            peak = given.get("init_value")
            kind, decay_steps, end = "cosine", given.get("decay_steps"), (peak or 0) * given.get("alpha", 0.0)
        elif name == "linear_schedule" and not given.get("transition_begin"):
            peak = given.get("init_value")
            kind, decay_steps, end = "linear", given.get("transition_steps"), given.get("end_value")
        else:
            raise NoCounterpart(f"the schedule {name} has no counterpart")
        if given.get("exponent", 1) != 1:
            raise NoCounterpart(f"{name}.exponent={given['exponent']} has no counterpart")
        if not peak or end is None or end > peak:
            raise NoCounterpart(f"{name} lacks its peak or its end value, or ends above its peak")
        if kind != "constant" and decay_steps != self._num_steps:
            raise NoCounterpart(
                f"{name} ends after {decay_steps} steps, but the run has {self._num_steps}; a decay ends with the run"
            )
        floor = {"floor": end / peak} if kind != "constant" else {}
        return float(peak), {"name": kind, "num_warmup_steps": warmup, "factors": (), **floor}

    def _read(self, name: str, fields: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments of a function by our names. Raises NoCounterpart for others that have an effect."""
        settings = {}
        for argument, value in self._arguments(name).items():
            if argument in fields:
                settings[fields[argument]] = value
            elif argument not in _NEUTRAL or value not in _NEUTRAL[argument]:
                raise NoCounterpart(f"{name}.{argument} has no counterpart")
        return settings
