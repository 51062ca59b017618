"""Spreading a model over devices: one path for one process, DDP, FSDP2 and HSDP, for any model that lists its
`blocks()`.

Per block: activation checkpointing, then `torch.compile` in place, then sharding. In place, because a compiled
*wrapper* would hide the block from FSDP2's hooks; before sharding, because that is the order those hooks are made for.
Whatever else is compiled has no parameters (see `CompiledApart`), so that sharding does not see it.

The model keeps its parameter names: no wrapper module is put inside it.
"""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from pretrainkit.dist.devices import to_device
from pretrainkit.dist.env import World
from pretrainkit.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from pretrainkit.training.run import ParallelConfig

_log = logging.getLogger(__name__)

_GRAPHS_PER_KIND = 32
"""Maximum number of graphs per kind of block before torch runs it uncompiled: layouts and windows of attention, in
training and evaluation, with fixed and dynamic shapes, for sizes 0 and 1."""


_LEAST_UPDATES = 1000
"""Minimum updates of a run that compiles by default: compiling takes a minute and saves a small part of an update."""


class HasBlocks(Protocol):
    """A model with blocks that are compiled, checkpointed and sharded one by one."""

    def blocks(self) -> list[nn.Module]:
        """The large repeated submodules, in order; none holds a parameter that lies outside of it as well."""


@runtime_checkable
class CompiledApart(Protocol):
    """A module without parameters that is compiled as blocks are, such as a head's loss."""

    is_compiled_apart: ClassVar[bool]


def parallelize(
    model: nn.Module,
    config: ParallelConfig,
    world: World,
    compute_dtype: torch.dtype,
    num_updates: int = _LEAST_UPDATES,
) -> nn.Module:
    """Move `model` to this rank's device and prepare it, in place, for training with all ranks; returns what the
    trainer calls: `model` itself, or DDP around it. `unwrap` gives the model back.

    Rank 0's weights win: they are sent to the others once, so ranks agree even if they were initialised differently.
    `compute_dtype` is what FSDP2 on a GPU gathers and computes in; gradients are reduced in float32. With one process
    the strategy has no effect. `num_updates` of the run decide, among others, whether compile=auto compiles.
    """
    blocks = cast(HasBlocks, model).blocks()
    if config.activation_checkpointing:
        for block in blocks:
            block.forward = _Recomputed(block.forward)
    if _shall_compile(config, world, num_updates):
        torch._dynamo.config.recompile_limit = _GRAPHS_PER_KIND
        if config.activation_checkpointing:
            # Metrics that a block stores in its forward pass must not be stored twice by the recomputation.
            torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
        _compile(model, blocks)
    if world.world_size == 1:
        return to_device(model, world.device)
    if config.is_sharded:
        return _shard(model, blocks, _mesh(config, world), world, compute_dtype)
    _send_weights(model, world)
    # Buffers are constant tables, not to be sent before every forward pass. torch renamed the argument.
    arguments = inspect.signature(DistributedDataParallel.__init__).parameters
    buffers: dict[str, Any] = {next(n for n in ("forward_sync_buffers", "broadcast_buffers") if n in arguments): False}
    return DistributedDataParallel(
        model,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        init_sync=False,
        gradient_as_bucket_view=True,
        **buffers,
    )


def _compile(model: nn.Module, blocks: list[nn.Module]) -> None:
    """In place. Blocks share what was compiled only where they lie side by side and have parameters of equal shapes.

    torch keeps graphs by the code of `forward`, which all blocks of a class share: they would use up one limit
    together, and what is 12 long in one tower and 7 in the other would become a number that is not known.
    """
    kinds: dict[object, Callable[..., Any]] = {}
    names = {module: name for name, module in model.named_modules()}
    for module in [*blocks, *(part for part in model.modules() if isinstance(part, CompiledApart))]:
        place, shapes = names[module].rpartition(".")[0], tuple(one.shape for one in module.parameters())
        kind, forward = (place, type(module), shapes), module.forward
        if isinstance(forward, _Recomputed):
            if kind not in kinds:
                code = {"__call__": _copy_of(cast(FunctionType, _Recomputed.__call__), len(kinds))}
                kinds[kind] = type("_Recomputed", (_Recomputed,), code)
            module.forward = kinds[kind](forward.forward)
        elif isinstance(forward, MethodType) and isinstance(forward.__func__, FunctionType):
            if kind not in kinds:
                kinds[kind] = _copy_of(forward.__func__, len(kinds))
            module.forward = MethodType(kinds[kind], module)
        module.compile()


def _copy_of(function: FunctionType, number: int) -> FunctionType:
    """The same function; to the compiler, which goes by a code's name and place as well, another one."""
    code = function.__code__.replace(co_name=f"{function.__name__}_of_kind_{number}")
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _mesh(config: ParallelConfig, world: World) -> DeviceMesh:
    """FSDP2: all ranks in one row. HSDP: a row for each copy of the model."""
    from torch.distributed.device_mesh import init_device_mesh

    # A dry run on "meta" has shapes and no devices.
    device_type = "cpu" if world.device.type == "meta" else world.device.type
    if config.strategy == "fsdp2":
        return init_device_mesh(device_type, (world.world_size,), mesh_dim_names=("shards",))
    shards = config.shard_ranks or world.local_world_size
    if world.world_size % shards:
        raise ConfigError(
            f"{world.world_size} ranks are no whole number of copies of the model on {shards} ranks each\n"
            "  start as many on each machine, or set parallel.shard_ranks to a divisor of their number"
        )
    return init_device_mesh(device_type, (world.world_size // shards, shards), mesh_dim_names=("copies", "shards"))


def _shard(
    model: nn.Module, blocks: list[nn.Module], mesh: DeviceMesh, world: World, compute_dtype: torch.dtype
) -> nn.Module:
    """FSDP2: each block is a group of its own; the root's group is the rest, tied embeddings and head together.

    A module of nothing but single numbers, such as a temperature, stays in float32: rounded, it would move every logit.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if gathers_in(compute_dtype, world):
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for block in blocks:
        _send_weights(block, world)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    _send_weights(model, world)
    for numbers in [module for module in model.modules() if _holds_numbers(module)]:
        fully_shard(numbers, mesh=mesh)
    # The root's parameters are needed at both ends of the step: gathering them twice would only cost time.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    model.register_forward_hook(_reshard_after_evaluation)
    return model


def gathers_in(dtype: torch.dtype, world: World) -> bool:
    """True if FSDP2 gathers weights in this number format rather than in float32, as on CPUs and in a dry run."""
    return world.device.type not in ("cpu", "meta") and dtype != torch.float32


def _holds_numbers(module: nn.Module) -> bool:
    """True if it has parameters, and all of them are single numbers."""
    sizes = [parameter.numel() for parameter in module.parameters()]
    return bool(sizes) and max(sizes) == 1


def _gathered_by_hand(model: nn.Module) -> list[Any]:
    """The groups of a sharded model that are used outside of a forward pass of their own."""
    from torch.distributed.fsdp import FSDPModule

    groups = [module for module in model.modules() if isinstance(module, FSDPModule)]
    return [module for module in groups if module is model or _holds_numbers(cast(nn.Module, module))]


def _reshard_after_evaluation(model: nn.Module, inputs: object, output: object) -> None:
    """Without a backward pass, which would do it, the root would keep its gathered weights whatever becomes of them."""
    if not torch.is_grad_enabled():
        for group in _gathered_by_hand(model):
            group.reshard()


def _send_weights(module: nn.Module, world: World) -> None:
    """Move what is not sharded yet to the device, and replace parameters and buffers by rank 0's."""
    to_device(module, world.device)
    for tensor in [*module.parameters(), *module.buffers()]:
        if not is_dtensor(tensor):
            dist.broadcast(tensor.detach(), src=0)


class _Recomputed:
    """A block's forward with activation checkpointing.

    Takes the place of `block.forward`, so there is no wrapper module: parameter names and the block's type stay.
    A class, not a closure, so that copies of the block call their own forward; Python code, not `functools.partial`,
    because `torch.compile` would find no frame of ours to start from and leave the block uncompiled.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.forward, *args, use_reentrant=False, **kwargs)


def _shall_compile(config: ParallelConfig, world: World, num_updates: int) -> bool:
    """True if to compile, after a look for what inductor and Triton will need in the middle of the first step."""
    is_gpu = world.device.type == "cuda"
    if config.compile == "off" or (config.compile == "auto" and (not is_gpu or num_updates < _LEAST_UPDATES)):
        return False
    named = os.environ.get("CC" if is_gpu else "CXX")
    candidates = [named] if named else (["gcc", "clang", "cc"] if is_gpu else ["g++", "clang++", "c++"])
    lacks, mend = f"a C compiler (looked for {', '.join(candidates)})", "gcc and g++"
    if any(shutil.which(candidate) for candidate in candidates):
        if not is_gpu or has_python_headers():
            return True
        lacks, mend = "Python's headers (Python.h), which Triton builds against", "python3-dev"
    if world.is_main:
        _log.warning(
            "torch.compile needs %s and found none: running uncompiled, which is slower\n"
            "  install %s, or set parallel.compile=off to silence this",
            lacks,
            mend,
        )
    return False


def has_python_headers() -> bool:
    """True if C code for this Python can be compiled, as Triton does for each kernel."""
    return Path(sysconfig.get_path("include"), "Python.h").is_file()


def unwrap(model: nn.Module) -> nn.Module:
    """The recipe's model, with its own parameter names, inside what `parallelize` returned."""
    return cast(nn.Module, model.module) if isinstance(model, DistributedDataParallel) else model


def is_sharded(model: nn.Module) -> bool:
    """True if the parameters are spread over ranks (FSDP2, HSDP)."""
    return _is_instance(model, "torch.distributed.fsdp", "FSDPModule")


def is_dtensor(tensor: Tensor) -> bool:
    """True if `tensor` is one rank's part of a larger one."""
    return _is_instance(tensor, "torch.distributed.tensor", "DTensor")


def _is_instance(value: object, module_name: str, class_name: str) -> bool:
    """Return the result of isinstance without importing the module, which takes half a second; `value` implies it.

    The class is missing from a module that another thread (that of checkpoints) is importing just now.
    """
    kind = getattr(sys.modules.get(module_name), class_name, None)
    return kind is not None and isinstance(value, kind)


def gather_root_weights(model: nn.Module) -> None:
    """Make the parameters outside the blocks whole on this rank until the next backward pass has used them.

    For computation on them outside the model's own forward pass, such as a loss with a temperature.
    """
    if is_sharded(model):
        for group in _gathered_by_hand(model):
            group.unshard()


def averages_gradients(model: nn.Module) -> bool:
    """True if the backward pass leaves the mean over ranks in `grad` (DDP, FSDP2) rather than this rank's own gradient.

    Sums over the global batch are then world size times that mean.
    """
    return isinstance(model, DistributedDataParallel) or is_sharded(model)


@contextmanager
def gradient_sync(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Forward and backward inside; with `enabled` False gradients only add up locally.

    Use False for all microbatches of a step but the last: that one then reduces the sum.
    """
    if isinstance(model, DistributedDataParallel) and not enabled:
        with model.no_sync():
            yield
    elif is_sharded(model):
        from torch.distributed.fsdp import FSDPModule

        sharded = cast(FSDPModule, model)
        sharded.set_requires_gradient_sync(enabled)
        try:
            yield
        finally:
            sharded.set_requires_gradient_sync(True)
    else:
        yield
