"""A device out of torch's tree, as a package of its own brings one: torch loads it through the entry point
`torch.backends`, and calls `register`.

Its memory is the host's and its arithmetic the CPU's. To torch it is a device like any other: operators refuse tensors
of it together with those of the CPU, and it has none of CUDA's functions and no pinned memory.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

NAME = "made_up"
_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


def install(folder: Path) -> None:
    """Make this module a package of `folder`, for Pythons that have it on their path."""
    (folder / "made_up_device.py").write_text(Path(__file__).read_text())
    about = folder / "made_up_device-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up-device\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[torch.backends]\n{NAME} = made_up_device:register\n")


def register() -> None:
    """Tell torch of the device."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME, _Module(), _Hooks(), _Guard())
    _Module.library = torch.library.Library("_", "IMPL")
    _Module.library.fallback(lambda operator, *args, **kwargs: _run(operator, args, kwargs), "PrivateUse1")


class OnDevice(torch.Tensor):
    """A tensor of the device."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> "OnDevice":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=torch.device(NAME, 0),
        )
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return _run(operator, args, kwargs or {})

    def tolist(self) -> Any:
        """torch has none for tensors that are written in Python."""
        return self.host.tolist()


def _run(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    own = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    if own and operator not in _COPIES and any(t.ndim for t in tensors if not isinstance(t, OnDevice)):
        raise RuntimeError(f"{operator}: tensors on cpu and on {NAME}")
    device = torch.device(kwargs.get("device") or (NAME if own else "cpu"))
    args_there, kwargs_there = tree_map(lambda leaf: leaf.host if isinstance(leaf, OnDevice) else leaf, (args, kwargs))
    kwargs_there.pop("pin_memory", None)
    if kwargs_there.get("device") is not None:
        kwargs_there["device"] = torch.device("cpu")
    out = operator(*args_there, **kwargs_there)
    if operator is torch.ops.aten.copy_.default:
        return args[0]
    if device.type != NAME:
        return out
    wrapped = tree_map(lambda leaf: OnDevice(leaf) if isinstance(leaf, torch.Tensor) else leaf, out)
    return return_and_correct_aliasing(operator, args, dict(kwargs), wrapped)


class _Stream:
    def synchronize(self) -> None: ...

    def wait_stream(self, other: Any) -> None: ...


class _Module:
    """`torch.made_up`."""

    library: torch.library.Library

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return 0

    def set_device(self, index: int) -> None: ...

    def manual_seed(self, seed: int) -> None: ...

    def manual_seed_all(self, seed: int) -> None: ...

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(name="Made-up Device", total_memory=8 << 30)

    def synchronize(self, device: Any = None) -> None: ...

    def current_stream(self, device: Any = None) -> _Stream:
        return _Stream()

    def stream(self, stream: Any) -> AbstractContextManager[None]:
        return nullcontext()


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, index: int) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1
