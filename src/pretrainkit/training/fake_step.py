"""Simulation of one update without the model's numbers: what it would allocate, without the memory or the time. Also
the parallel layout on any number of ranks, without their devices.

Parameters are fake tensors: they have shapes and devices, and computing with them gives fake tensors. The batch is
real, because its lengths determine shapes; values that depend on the batch alone are computed. A dispatch mode sees
every result and adds up the storages that are alive.

Torch imports its compiler when it first determines the shape of a sum. It is imported here, because an import in the
middle of a step would keep alive the results of the functions that wait for it.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretrainkit.dist.devices import planned_for
from pretrainkit.dist.env import World
from pretrainkit.dist.parallelize import parallelize
from pretrainkit.training.accumulate import accumulate
from pretrainkit.training.fake_tensor import FakeTensor, returns_new_tensors, tensors_in
from pretrainkit.training.objective import AnyObjective, Batch
from pretrainkit.training.optimizers.build import build_optimizer
from pretrainkit.training.optimizers.config import OptimizerConfig
from pretrainkit.training.optimizers.parameters import num_local_elements
from pretrainkit.training.precision import Precision
from pretrainkit.training.run import ParallelConfig


@dataclass(frozen=True)
class StepMemory:
    """Memory of one process that has the whole model, in bytes."""

    weights: int
    """Parameters and buffers."""
    gradients: int
    optimizer: int
    """State of the optimizer between updates."""
    activations: int
    """Peak of forward and backward pass beyond weights and all gradients, including the batch. In the first microbatch
    activations are freed while gradients are allocated, so it needs less; later ones start with all gradients."""
    update: int
    """Peak of the update beyond weights, gradients and state."""

    @property
    def peak(self) -> int:
        """Memory at the worst moment of a step after the first."""
        return self.weights + self.gradients + self.optimizer + max(self.activations, self.update)


def faked(model: nn.Module) -> nn.Module:
    """Replace parameters and buffers of `model`, built on "meta", by fake tensors, in place."""
    known: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            # `empty_like` is visible to the tracker if a network is built in the middle of a step.
            empty = torch.empty_like(FakeTensor(torch.empty_like(tensor, device="meta")))
            is_parameter = isinstance(tensor, nn.Parameter)
            known[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_parameter else empty
        return known[id(tensor)]

    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for name, tensor in store.items():
                if tensor is not None:
                    store[name] = fake(tensor)  # type: ignore[assignment]
    return model


def step_memory(
    model: nn.Module,
    objective: AnyObjective,
    microbatches: Sequence[Batch],
    optimizer_config: OptimizerConfig | None,
    precision: Precision,
    card: tuple[int, int] | None = None,
) -> StepMemory:
    """Return the memory of one update with these microbatches, which are real tensors, on a CPU or on a GPU with the
    compute capability `card`.

    `model` is the result of `faked`, or a real model, which is then trained for one step. Without `optimizer_config`
    its state and update count as 0.
    """
    weights = _bytes([*model.parameters(), *model.buffers()])
    optimizer = None if optimizer_config is None else build_optimizer(model, optimizer_config)
    is_fake = any(isinstance(parameter, FakeTensor) for parameter in model.parameters())
    with planned_for(card), _Tracker(makes_fakes=is_fake) as tracker:
        accumulate(objective, model, microbatches, precision=precision)
        gradients = _bytes([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        activations = tracker.peak - gradients + _bytes(next(iter(microbatches)).values())
        if optimizer is None:
            return StepMemory(weights, gradients, 0, activations, 0)
        tracker.at_start = tracker.peak = tracker.current
        optimizer.step()
        state = _bytes(
            value for state in optimizer.state.values() for value in tree_leaves(state) if isinstance(value, Tensor)
        )
        update = max(0, tracker.peak - tracker.at_start - state)
    return StepMemory(weights, gradients, state, activations, update)


_MOST_FILLED = 1 << 14
"""Maximum number of elements of a tensor that is really filled. Tensors that determine shapes are smaller."""


class _Tracker(TorchDispatchMode):
    """Adds up the storages that are created while it is active, and subtracts those that are freed."""

    def __init__(self, *, makes_fakes: bool) -> None:
        """If `makes_fakes`, large tensors that are created to be filled, such as those of dropout, are fake as well."""
        super().__init__()
        self._makes_fakes = makes_fakes
        self.current = self.peak = self.at_start = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """True would make torch's compiler ignore this mode."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if FakeTensor in types:  # a shortcut: torch would call it in the end
            result = FakeTensor.__torch_dispatch__(func, types, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if self._makes_fakes and func is torch.ops.aten.empty.memory_format and result.numel() > _MOST_FILLED:
            result = result if result.is_meta else FakeTensor(result.to("meta"))
        for tensor in (result,) if isinstance(result, Tensor) else tensors_in(result):
            storage = _storage(tensor)
            if id(storage) not in self._known and not tensor.is_meta:
                arguments = () if returns_new_tensors(func) else tensors_in((args, tuple(kwargs.values())))
                if all(storage is not _storage(other) for other in arguments):
                    self._add(storage)
        self.peak = max(self.peak, self.current)
        return result

    def _add(self, storage: Any) -> None:
        number, size = id(storage), storage.nbytes()

        def on_free(_: Any) -> None:
            del self._known[number]
            self.current -= size

        self._known[number] = weakref.ref(storage, on_free)
        self.current += size


def _storage(tensor: Tensor) -> Any:
    return tensor.fake_storage if isinstance(tensor, FakeTensor) else tensor.untyped_storage()


def _bytes(tensors: Any) -> int:
    """Return the bytes of the tensors' storages, each counted once."""
    return sum({id(storage): storage.nbytes() for storage in map(_storage, tensors)}.values())


def numbers_per_rank(build: Callable[[], nn.Module], config: ParallelConfig, world_size: int) -> dict[int, int]:
    """Return the number of parameter elements that the first and the last rank keep between steps. Other ranks keep at
    most as many as the first. `build` creates the model on "meta".

    Rank 0 is laid out: this shows whether DDP, FSDP2 and HSDP accept the model, and how large its part is. The part of
    the last rank follows by FSDP2's rule. Collectives are those of torch's fake process group, which do nothing. Raises
    RuntimeError if this process already has a process group.
    """
    with fake_world(0, world_size) as world:
        parameters = list(parallelize(build(), config, world, torch.float32).parameters())
        return {rank: sum(num_local_elements(tensor, rank) for tensor in parameters) for rank in (0, world_size - 1)}


@contextmanager
def fake_world(rank: int, world_size: int) -> Iterator[World]:
    """Context in which this process is one of many ranks, whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if world_size == 1:
        yield World(device=torch.device("meta"))
        return
    if dist.is_initialized():
        raise RuntimeError("a dry run creates its own process group, but this process already has one")
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield World(rank, world_size, device=torch.device("meta"), backend="fake")
    finally:
        dist.destroy_process_group()
