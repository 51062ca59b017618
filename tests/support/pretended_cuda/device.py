"""A device that claims to be CUDA and computes on the CPU, in a build of torch without CUDA. Import it before torch.

Tensors of `torch.device("cuda")` pass autograd and autocast as CUDA's do, operators refuse to mix devices as CUDA's do,
and whatever would make the host wait for a GPU is counted with the line that did it.
"""

from support.pretended_cuda import load  # isort: skip  # before torch

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.attention.flex_attention
import torch.nn.attention.varlen
from torch import Tensor, nn
from torch.utils._python_dispatch import return_and_correct_aliasing

from support.pretended_cuda import attention

assert load
CUDA = torch.device("cuda", 0)
aten = torch.ops.aten

_WAITS = {
    aten._local_scalar_dense.default: "item",
    aten.nonzero.default: "nonzero",
    aten.masked_select.default: "masked_select",
    aten.equal.default: "equal",
    aten._unique2.default: "unique",
    aten.unique_dim.default: "unique",
    aten.is_nonzero.default: "is_nonzero",
    aten.bincount.default: "bincount",
    aten.repeat_interleave.Tensor: "repeat_interleave",
}
"""Operators that wait for the device, because their result or its shape is needed on the host (unless it is set by
`output_size`)."""
_INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
_OWN = (
    *(aten.arange.default, aten.arange.start, aten.arange.start_step, aten.eye.default, aten.eye.m),
    aten.silu_backward.default,
    aten.copy_.default,
)
"""Operators that do not reach Python by themselves. For the first ones torch has a way on all devices, into an empty
tensor, which cannot grow here, or by operators that round in between; the last copies what torch makes of Python's
numbers, behind its back."""
_KERNELS = {
    "torch_attn._varlen_attn.default": attention.varlen_forward,
    "torch_attn._varlen_attn_backward.default": attention.varlen_backward,
    "aten._flash_attention_forward.default": attention.flash_forward,
    "aten._flash_attention_backward.default": attention.flash_backward,
}


class Record:
    """Record of the events since `clear`."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        """`kind @ file:line text` to how often the host waited there."""
        self.operators: Counter[str] = Counter()
        """Operators on the device, by name."""
        self.is_on = False

    def clear(self) -> None:
        self.waits.clear()
        self.operators.clear()

    @contextlib.contextmanager
    def on(self) -> Iterator["Record"]:
        self.clear()
        self.is_on = True
        try:
            yield self
        finally:
            self.is_on = False

    def wait(self, kind: str) -> None:
        if self.is_on:
            self.waits[f"{kind} @ {_place()}"] += 1


RECORD = Record()
_pinned: dict[int, Tensor] = {}
"""Pinned tensors by storage; kept, so that no other tensor gets the same one."""


def _place() -> str:
    """The line outside of torch and of this folder that is being executed."""
    for frame in reversed(traceback.extract_stack()):
        if "site-packages/torch/" not in frame.filename and "pretended_cuda" not in frame.filename:
            return f"{frame.filename.rpartition('/src/')[2]}:{frame.lineno} {frame.line}"
    return "?"


class OnCuda(Tensor):
    """A tensor that claims to be on the device; `host` has its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> "OnCuda":
        made = Tensor._make_wrapper_subclass(
            cls, host.size(), strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype, device=CUDA
        )
        made.host = host.detach()
        return made

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operator, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            made: Tensor = OnCuda(self.host.clone())
            if isinstance(self, nn.Parameter):
                made = nn.Parameter(made, self.requires_grad)
            elif self.requires_grad and self.is_leaf:
                made.requires_grad_()
            memo[id(self)] = made
        return memo[id(self)]

    def tolist(self) -> Any:
        RECORD.wait("tolist")
        return self.host.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        return f"OnCuda({self.host})"


class _Known:
    """Properties of an operator that do not depend on its arguments."""

    def __init__(self, operator: Any) -> None:
        self.name = str(operator)
        self.function = _KERNELS.get(self.name, operator)
        self.is_to_copy = operator is aten._to_copy.default
        self.is_copy = operator is aten.copy_.default
        self.is_indexing = operator in _INDEXING
        self.has_aliases = any(one.alias_info is not None for one in operator._schema.arguments)
        """True if results may be views of arguments, or the arguments themselves."""


_known = cache(_Known)


def _run(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    known = _known(operator)
    tensors: list[Tensor] = []
    host_args, host_kwargs = _map(_host, args, tensors), _map(_host, kwargs, tensors)
    own = [tensor for tensor in tensors if isinstance(tensor, OnCuda)]
    mixes = own and not (known.is_to_copy or known.is_copy)
    if mixes and any(tensor.ndim for tensor in tensors if not isinstance(tensor, OnCuda)):
        raise RuntimeError(f"{operator}: tensors of cpu and of cuda at {_place()}")
    if RECORD.is_on and own:
        RECORD.operators[known.name] += 1
    if operator in _WAITS and kwargs.get("output_size") is None:
        RECORD.wait(_WAITS[operator])
    if known.is_indexing and any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1]):
        RECORD.wait("index by a mask")
    if known.is_copy:
        into, source, *rest = args
        _copied(source, isinstance(into, OnCuda), bool(rest[0]) if rest else kwargs.get("non_blocking", False))
        host_args[0].copy_(host_args[1])
        return into
    device = torch.device(kwargs.get("device") or ("cuda" if own else "cpu"))
    if known.is_to_copy:
        _copied(args[0], device.type == "cuda", kwargs.get("non_blocking", False))
    host_kwargs.pop("pin_memory", None)
    if host_kwargs.get("device") is not None:
        host_kwargs["device"] = torch.device("cpu")
    try:
        found = known.function(*host_args, **host_kwargs)
    except (RuntimeError, NotImplementedError) as error:
        raise type(error)(f"{error} [{operator} at {_place()}]") from None
    if device.type != "cuda":
        return found
    wrapped = _map(OnCuda, found, [])
    return return_and_correct_aliasing(operator, args, kwargs, wrapped) if known.has_aliases else wrapped


def _map(change: Callable[[Tensor], Tensor], value: Any, tensors: list[Tensor]) -> Any:
    """Arguments or results of an operator with every tensor changed; `tensors` gets those before. (The trees of torch
    do the same for any type, in half of this program's time.)"""
    if isinstance(value, Tensor):
        tensors.append(value)
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(_map(change, one, tensors) for one in value)
    return {key: _map(change, one, tensors) for key, one in value.items()} if isinstance(value, dict) else value


def _host(tensor: Tensor) -> Tensor:
    return tensor.host if isinstance(tensor, OnCuda) else tensor


def _copied(source: Tensor, to_cuda: bool, non_blocking: bool) -> None:
    from_cuda = isinstance(source, OnCuda)
    if from_cuda and not to_cuda:
        RECORD.wait("copy to the host")
    elif to_cuda and not from_cuda and not (non_blocking and source.untyped_storage()._cdata in _pinned):
        RECORD.wait("copy from pageable memory of the host" if non_blocking else "copy from the host")


def _pin_memory(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    made = tensor.clone()
    _pinned[made.untyped_storage()._cdata] = made
    return made


class _Stream:
    device, device_type, device_index, stream_id = CUDA, 1, 0, 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        RECORD.wait("synchronize")

    def record_event(self, event: Any = None) -> "_Event":
        return _Event()

    def wait_event(self, event: Any) -> None: ...

    def wait_stream(self, other: Any) -> None: ...


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, *args: Any) -> None: ...

    def synchronize(self) -> None:
        RECORD.wait("synchronize")

    def elapsed_time(self, other: Any) -> float:
        return 1.0


def _install() -> None:
    """Replace the functions of CUDA that Python calls."""
    everything, own = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everything.fallback(lambda operator, *args, **kwargs: _run(operator, args, kwargs), "CUDA")
    for operator in _OWN:
        own.impl(operator, lambda *args, _own=operator, **kwargs: _run(_own, args, kwargs), "CUDA")
    _install.libraries = (everything, own)  # type: ignore[attr-defined]  # as long as the process lives
    properties = SimpleNamespace(
        name="NVIDIA H200", total_memory=141 << 30, major=9, minor=0, multi_processor_count=132
    )
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: properties.name,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "get_device_properties": lambda device=None: properties,
        "is_bf16_supported": lambda including_emulation=True: True,
        "manual_seed": lambda seed: torch.default_generator.manual_seed(seed),
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda state, device="cuda": torch.set_rng_state(state),
        "synchronize": lambda device=None: RECORD.wait("synchronize"),
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device=None: _Stream(),
        "Stream": _Stream,
        "Event": _Event,
    }.items():
        setattr(torch.cuda, name, value)
    for name, value in {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "device_count": lambda: 1,
        "set_device_index": lambda index: None,
        "synchronize": lambda device=None: RECORD.wait("synchronize"),
    }.items():
        setattr(torch.accelerator, name, value)
    Tensor.pin_memory = _pin_memory  # type: ignore[assignment]
    keeps = torch._has_compatible_shallow_copy_type
    torch._has_compatible_shallow_copy_type = lambda *both: (
        not any(isinstance(one, OnCuda) for one in both) and keeps(*both)
    )
    torch.nn.attention.flex_attention.flex_attention = attention.flex_attention
    torch.compile = lambda function, *args, **kwargs: function
    import pretrainkit.dist.parallelize as parallelize  # before what takes the function by its name

    parallelize.missing_for_compiling = lambda device_type: None


_install()
