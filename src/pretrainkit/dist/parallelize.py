"""Distribution of a model over devices: one path for one process, DDP, FSDP2 and HSDP, for any model that lists its
`blocks()`.

The order per block is activation checkpointing, then `torch.compile` in place, then sharding. Compilation is in place
because a compiled *wrapper* would hide the block from FSDP2's hooks, and before sharding because the hooks are made for
this order. Other compiled modules have no parameters (see `CompiledApart`), so sharding ignores them.

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
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from pretrainkit.dist.autocast import Float32Module
from pretrainkit.dist.devices import to_device
from pretrainkit.dist.env import World
from pretrainkit.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from pretrainkit.training.run import ParallelConfig

_log = logging.getLogger(__name__)

_GRAPHS_PER_KIND = 32
"""Maximum number of graphs per kind of block, after which torch runs the block uncompiled. It is enough for all layouts
and windows of attention, in training and evaluation, with fixed and dynamic shapes, and for sizes 0 and 1."""


_LEAST_UPDATES = 1000
"""Minimum number of updates of a run that compiles by default: compiling takes a minute, and saves little per
update."""


class HasBlocks(Protocol):
    """A model with blocks that are compiled, checkpointed and sharded one by one."""

    def blocks(self) -> list[nn.Module]:
        """Return the large repeated submodules, in order. The rest of the model must not use their parameters."""


@runtime_checkable
class CompiledApart(Protocol):
    """A module without parameters that is compiled like a block, such as a head's loss."""

    is_compiled_apart: ClassVar[bool]


def parallelize(
    model: nn.Module,
    config: ParallelConfig,
    world: World,
    compute_dtype: torch.dtype,
    num_updates: int = _LEAST_UPDATES,
) -> nn.Module:
    """Move `model` to this rank's device and prepare it, in place, for training with all ranks.

    Returns the module that the trainer calls: `model` itself, or DDP around it. `unwrap` returns the model.

    Rank 0's weights are sent to the others once, so ranks agree even if they were initialized differently. FSDP2 on a
    GPU gathers and computes in `compute_dtype`; gradients are reduced in float32. With one process the strategy has no
    effect. `num_updates`, the length of the run, is one of the conditions of compile=auto.
    """
    blocks = cast(HasBlocks, model).blocks()
    if config.activation_checkpointing:
        for block in blocks:
            block.forward = _Recomputed(block.forward)
    if _should_compile(config, world, num_updates):
        torch._dynamo.config.recompile_limit = _GRAPHS_PER_KIND
        if config.activation_checkpointing:
            # Recomputation must not store metrics again that a block has stored in its forward pass.
            torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
        _compile(model, blocks)
    if world.world_size == 1:
        return to_device(model, world.device)
    if config.is_sharded:
        return _shard(model, blocks, _mesh(config, world), world, compute_dtype)
    _send_weights(model, world)
    # Buffers are constant tables, so they need not be sent before every forward pass. Torch renamed the argument.
    arguments = inspect.signature(DistributedDataParallel.__init__).parameters
    buffers: dict[str, Any] = {next(n for n in ("forward_sync_buffers", "broadcast_buffers") if n in arguments): False}
    parallel = DistributedDataParallel(
        model,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        init_sync=False,
        gradient_as_bucket_view=True,
        **buffers,
    )
    if world.backend != "fake":  # a dry run computes nothing
        _order_gradients(parallel, model)
    return parallel


def _order_gradients(parallel: DistributedDataParallel, model: nn.Module) -> None:
    """Let DDP place all gradients in its buckets as it does for the rest of the run.

    DDP orders its buckets again after the first backward pass of a process, as the gradients of that pass were ready.
    With three or more ranks, the place in a bucket decides in which order a number of each rank is added. So without
    this pass over a sum of all parameters, the first step of a resumed run would be rounded differently.
    """
    members = vars(model)
    own = members.get("forward")  # a model may have one besides that of its class
    members["forward"] = lambda _: sum(parameter.sum() for parameter in model.parameters() if parameter.requires_grad)
    try:
        parallel(None).backward()
    finally:
        del members["forward"]
        if own is not None:
            members["forward"] = own
    model.zero_grad()


def _compile(model: nn.Module, blocks: list[nn.Module]) -> None:
    """Compile in place. Blocks share compiled code only if they are adjacent and have parameters of equal shapes.

    Torch caches graphs by the code object of `forward`, which all blocks of a class share. So each kind of block gets a
    copy of it. Otherwise all kinds would use up one limit of graphs, and a size that is 12 in one tower and 7 in the
    other would become dynamic.
    """
    from pretrainkit.dist.saved_sums import SaveResidualSums

    options = {"joint_custom_post_pass": SaveResidualSums()}
    kinds: dict[object, Callable[..., Any]] = {}
    names = {module: name for name, module in model.named_modules()}
    for module in [*blocks, *(part for part in model.modules() if isinstance(part, CompiledApart))]:
        place, shapes = names[module].rpartition(".")[0], tuple(parameter.shape for parameter in module.parameters())
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
        module.compile(options=options)


def _copy_of(function: FunctionType, number: int) -> FunctionType:
    """Return a copy of the function with another code name, which the compiler treats as a different function."""
    code = function.__code__.replace(co_name=f"{function.__name__}_of_kind_{number}")
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _mesh(config: ParallelConfig, world: World) -> DeviceMesh:
    """Return the device mesh. FSDP2: all ranks in one row. HSDP: one row for each copy of the model."""
    from torch.distributed.device_mesh import init_device_mesh

    # A dry run on "meta" has shapes but no devices.
    device_type = "cpu" if world.device.type == "meta" else world.device.type
    if config.strategy == "fsdp2":
        return init_device_mesh(device_type, (world.world_size,), mesh_dim_names=("shards",))
    shards = config.shard_ranks or world.local_world_size
    if world.world_size % shards:
        raise ConfigError(
            f"{world.world_size} ranks cannot be divided into groups of {shards} ranks that share a copy of the model\n"
            "  start the same number of ranks on each machine, or set parallel.shard_ranks to a divisor of their number"
        )
    return init_device_mesh(device_type, (world.world_size // shards, shards), mesh_dim_names=("copies", "shards"))


def _shard(
    model: nn.Module, blocks: list[nn.Module], mesh: DeviceMesh, world: World, compute_dtype: torch.dtype
) -> nn.Module:
    """Shard by FSDP2: each block is a group, and the root's group is the rest, including tied embeddings and head.

    A module whose parameters are single numbers, such as a temperature, stays in float32, because rounding would change
    every logit; so does a `Float32Module`.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if gathers_in(compute_dtype, world):
        # Autocast decides about inputs, as without sharding; FSDP2 would also copy the layouts of attention to cast them.
        policy = MixedPrecisionPolicy(compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in blocks:
        _send_weights(block, world)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    _send_weights(model, world)
    for wide in [module for module in model.modules() if _holds_numbers(module) or isinstance(module, Float32Module)]:
        fully_shard(wide, mesh=mesh)
    # The root's parameters are needed at the beginning and the end of the step, so they stay gathered in between.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    model.register_forward_hook(_reshard_after_evaluation)
    return model


def gathers_in(dtype: torch.dtype, world: World) -> bool:
    """True if FSDP2 gathers weights in this number format. On CPUs and in a dry run it gathers float32."""
    return world.device.type not in ("cpu", "meta") and dtype != torch.float32


def _holds_numbers(module: nn.Module) -> bool:
    """True if the module has parameters, and all of them are single numbers."""
    sizes = [parameter.numel() for parameter in module.parameters()]
    return bool(sizes) and max(sizes) == 1


def _gathered_by_hand(model: nn.Module) -> list[Any]:
    """Return the groups of a sharded model that are used outside of their own forward pass."""
    from torch.distributed.fsdp import FSDPModule

    groups = [module for module in model.modules() if isinstance(module, FSDPModule)]
    return [module for module in groups if module is model or _holds_numbers(cast(nn.Module, module))]


def _reshard_after_evaluation(model: nn.Module, inputs: object, output: object) -> None:
    """Free the root's gathered weights after a forward pass in evaluation; otherwise the backward pass does it."""
    if not torch.is_grad_enabled():
        for group in _gathered_by_hand(model):
            group.reshard()


def _send_weights(module: nn.Module, world: World) -> None:
    """Move unsharded tensors to the device, and replace parameters and buffers by those of rank 0."""
    to_device(module, world.device)
    for tensor in [*module.parameters(), *module.buffers()]:
        if not is_dtensor(tensor):
            dist.broadcast(tensor.detach(), src=0)


class _Recomputed:
    """A block's forward with activation checkpointing.

    It replaces `block.forward`, so there is no wrapper module, and parameter names and the block's type stay the same.
    It is a class and not a closure, so that copies of the block call their own forward. It is Python code and not
    `functools.partial`, in which `torch.compile` would find no frame to start from.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.forward, *args, use_reentrant=False, **kwargs)


def _should_compile(config: ParallelConfig, world: World, num_updates: int) -> bool:
    """True if blocks should be compiled. If something that the compiler needs is missing, warns and returns False."""
    kind = world.device.type
    if config.compile == "off" or (config.compile == "auto" and (kind != "cuda" or num_updates < _LEAST_UPDATES)):
        return False
    missing = missing_for_compiling(kind)
    if missing and world.is_main:
        _log.warning(
            "torch.compile needs %s, which is missing: running uncompiled, which is slower\n"
            "  fix: %s, or set parallel.compile=off to disable this warning",
            *missing,
        )
    return missing is None


def missing_for_compiling(device_type: str) -> tuple[str, str] | None:
    """Return what `torch.compile` needs for devices of a type and does not find, and the command that installs it."""
    is_gpu = device_type == "cuda"
    named = os.environ.get("CC" if is_gpu else "CXX")
    candidates = [named] if named else (["gcc", "clang", "cc"] if is_gpu else ["g++", "clang++", "c++"])
    if not any(shutil.which(candidate) for candidate in candidates):
        return f"a C compiler (searched {', '.join(candidates)})", "apt install gcc g++"
    if is_gpu and find_spec("triton") is None:
        return "the package triton", "pip install triton"
    if is_gpu and not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python's headers (Python.h), which Triton builds against", "apt install python3-dev"
    return None


def unwrap(model: nn.Module) -> nn.Module:
    """Return the recipe's model, with its own parameter names, from the result of `parallelize`."""
    return cast(nn.Module, model.module) if isinstance(model, DistributedDataParallel) else model


def is_sharded(model: nn.Module) -> bool:
    """True if the parameters are sharded over ranks (FSDP2, HSDP)."""
    return _is_instance(model, "torch.distributed.fsdp", "FSDPModule")


def is_dtensor(tensor: Tensor) -> bool:
    """True if `tensor` is a DTensor, one rank's part of a larger tensor."""
    return _is_instance(tensor, "torch.distributed.tensor", "DTensor")


def _is_instance(value: object, module_name: str, class_name: str) -> bool:
    """Return the result of isinstance without importing the module, which takes half a second. If the module is not
    imported, no value has the class.

    The class may be missing while another thread (that of checkpoints) imports the module.
    """
    kind = getattr(sys.modules.get(module_name), class_name, None)
    return kind is not None and isinstance(value, kind)


def gather_root_weights(model: nn.Module) -> None:
    """Gather the parameters outside the blocks on this rank until the next backward pass has used them.

    This is needed for computation on them outside the model's own forward pass, such as a loss with a temperature.
    """
    if is_sharded(model):
        for group in _gathered_by_hand(model):
            group.unshard()


def averages_gradients(model: nn.Module) -> bool:
    """True if the backward pass stores the mean over ranks in `grad` (DDP, FSDP2), not this rank's own gradient.

    Sums over the batch of all ranks are then world size times that mean.
    """
    return isinstance(model, DistributedDataParallel) or is_sharded(model)


@contextmanager
def gradient_sync(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Context for a forward and backward pass; with `enabled` False, gradients are only added up locally.

    Use False for all microbatches of a step except the last, which then reduces the sum.
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
