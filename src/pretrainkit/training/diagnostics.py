"""Values that help to explain a loss spike: figures of each block, the memory in use, and the spikes themselves.

Figures of blocks are computed at logged steps and only with `log.diagnostics`, as they need a copy of the weights.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from pretrainkit.dist.parallelize import HasBlocks, unwrap
from pretrainkit.training.optimizers.parameters import local_tensors, tensor_norms

_WINDOW = 50
_MIN_VALUES = 20
"""Number of logged losses needed before a spike can be distinguished from noise."""
_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution, divided by its median absolute deviation."""


class Diagnostics:
    """Gradient norm, update-to-weight ratio and largest activation of each block; for the rest of the model, the norms.

    In a step that is logged, call `before_update` between gradients and update, and `after_update` after it. Each is a
    collective where the model is sharded. Nothing waits for the device until `metrics`.
    """

    def __init__(self, model: nn.Module) -> None:
        plain = unwrap(model)
        names = {module: name for name, module in plain.named_modules()}
        blocks = {names[block]: block for block in cast(HasBlocks, plain).blocks()}
        owner = {id(p): name for name, block in blocks.items() for p in block.parameters()}
        self._groups: dict[str, list[nn.Parameter]] = {}
        for parameter in plain.parameters():
            if parameter.requires_grad:
                self._groups.setdefault(owner.get(id(parameter), "rest"), []).append(parameter)
        device = next(plain.parameters()).device
        self._largest = {name: torch.zeros((), device=device) for name in blocks}
        for name, block in blocks.items():
            block.register_forward_hook(_keep_largest(self._largest[name]))
        self._before: dict[str, list[Tensor]] = {}
        self._values: dict[str, Tensor] = {}

    @torch.no_grad()
    def before_update(self) -> None:
        """Keep gradient norms, before they are clipped, and the weights."""
        for name, parameters in self._groups.items():
            gradients = [p.grad for p in parameters if p.grad is not None]
            self._values[f"grad_norm/{name}"] = _norm(gradients)
            self._before[name] = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def after_update(self) -> None:
        """Compare the weights with those before the update; a skipped update has a ratio of 0."""
        for name, parameters in self._groups.items():
            changes = [p.detach() - old for p, old in zip(parameters, self._before.pop(name), strict=True)]
            self._values[f"update_ratio/{name}"] = _norm(changes) / _norm(parameters).clamp(min=1e-12)
        for name, largest in self._largest.items():
            self._values[f"activation_max/{name}"] = largest.clone()
            largest.zero_()

    def metrics(self) -> dict[str, float]:
        """Return the figures of the last logged step: grad_norm/BLOCK, update_ratio/BLOCK, and activation_max/BLOCK,
        the largest absolute value in a block's output on this rank since the previous logged step. Waits for the
        device."""
        if not self._values:
            return {}
        values = torch.stack([value.float() for value in self._values.values()]).tolist()
        return dict(zip(self._values, values, strict=True))


def _keep_largest(largest: Tensor) -> Callable[[nn.Module, object, object], None]:
    def hook(block: nn.Module, inputs: object, output: object) -> None:
        if block.training:
            for tensor in _tensors(output):
                torch.maximum(largest, tensor.detach().abs().amax().to(largest), out=largest)

    return hook


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the floating-point tensors of a block's output."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel():
            yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm over all tensors, a scalar. For sharded tensors it includes the shards of all ranks."""
    return torch.linalg.vector_norm(tensor_norms(local_tensors(tensors), tensors))


class Spikes:
    """Detects spikes of a loss by the median and the spread of earlier logged losses."""

    def __init__(self, deviations: float, earlier: Iterable[float | None] = ()) -> None:
        """`earlier` are the losses that the run has logged already; with `deviations` 0 there are no spikes."""
        self._deviations = deviations
        self._losses = deque((loss for loss in earlier if loss is not None), maxlen=_WINDOW)

    def describe(self, loss: float) -> str | None:
        """Return a description of the spike if `loss` is one, else None, and remember the loss."""
        if not math.isfinite(loss):
            return None  # the update is skipped, which is an event of its own
        known = list(self._losses)
        self._losses.append(loss)
        if not self._deviations or len(known) < _MIN_VALUES:
            return None
        median = statistics.median(known)
        spread = _TO_DEVIATION * statistics.median(abs(value - median) for value in known)
        spread = max(spread, 1e-3 * abs(median))
        if loss <= median + self._deviations * spread:
            return None
        return f"loss {loss:.4g}, {(loss - median) / spread:.1f} deviations above the median {median:.4g}"
