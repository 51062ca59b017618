"""Tensors without numbers, for `pretrainkit plan`.

Torch has fake tensors, too, but each operation on them takes about a millisecond.
Tensors on "meta" will not do: number formats (autocast), kernels and layouts depend on the device.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor


class FakeStorage:
    """The memory that a fake tensor and its views would share. It lives as long as one of them does."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes

    def nbytes(self) -> int:
        """As `torch.UntypedStorage` has it."""
        return self._num_bytes


class FakeTensor(Tensor):
    """A tensor that says it is on the CPU and has a shape but no numbers. What is computed with it is one, too."""

    shape_only: Tensor
    """The same on "meta". Its own storage is no measure of what lives: torch's functions keep it in cycles."""
    fake_storage: FakeStorage

    @staticmethod
    def __new__(cls, shape_only: Tensor, storage: FakeStorage | None = None) -> "FakeTensor":
        """`shape_only` is on "meta"; `storage` is given where it is a view of another's."""
        self: FakeTensor = Tensor._make_wrapper_subclass(
            cls,
            shape_only.shape,
            strides=shape_only.stride(),
            storage_offset=shape_only.storage_offset(),
            dtype=shape_only.dtype,
            device=torch.device("cpu"),
        )
        self.shape_only = shape_only
        self.fake_storage = storage or FakeStorage(shape_only.untyped_storage().nbytes())
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        if not makes_new(func):
            written = [kwargs[name] for name in _outs(func)] or ([args[0]] if _changes_numbers(func) else [])
            if len(written) == 1 and written[0].numel():  # what is empty may take another shape
                return written[0]
            return _computed(func, args, kwargs)
        key = (func, _key(args), *((name, _key(value)) for name, value in kwargs.items()))
        if key not in _FORMS:
            _FORMS[key] = _mapped(lambda value: value.shape_only, _computed(func, args, kwargs))
        return _mapped(FakeTensor, _FORMS[key])


_FORMS: dict[Any, Any] = {}
"""Operators with the forms of their arguments, to the tensors on "meta" that they give. Torch takes up to milliseconds
to find out, and the steps that are compared hardly differ."""


@cache
def makes_new(func: Any) -> bool:
    """True for an operator that changes no argument, and whose results share no memory with one."""
    schema = func._schema
    return not schema.is_mutable and not any(result.alias_info for result in schema.returns)


@cache
def _outs(func: Any) -> tuple[str, ...]:
    """Arguments that hold a tensor for a result."""
    return tuple(one.name for one in func._schema.arguments if one.kwarg_only and one.alias_info)


@cache
def _changes_numbers(func: Any) -> bool:
    """True for an operator that changes its first argument, but not its shape."""
    return func._schema.is_mutable and torch.Tag.pointwise in func.tags


def _key(value: Any) -> Any:
    """What the form of results depends on."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, type(value)
    return tuple(map(_key, value)) if isinstance(value, (list, tuple)) else (type(value), value)


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given: dict[int, Tensor] = {}
    storages: dict[int, FakeStorage] = {}

    def without_numbers(value: Tensor) -> Tensor:
        if not isinstance(value, FakeTensor):
            shape_only = value.to("meta")
        else:
            shape_only = value.shape_only
            storages.setdefault(shape_only.untyped_storage()._cdata, value.fake_storage)
        # What is changed comes first: as `out`, or as the first argument.
        given.setdefault(id(shape_only), value)
        return shape_only

    def with_storage(value: Tensor) -> Tensor:
        if id(value) in given:  # changed in place
            return given[id(value)]
        return FakeTensor(value, storages.get(value.untyped_storage()._cdata))

    arguments = {name: _mapped(without_numbers, value) for name, value in kwargs.items()}
    if "device" in arguments:
        arguments["device"] = torch.device("meta")
    return _mapped(with_storage, func(*_mapped(without_numbers, args), **arguments))


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """`value` with the function of each tensor in the place of the tensor."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(function, part) for part in value)
    return value
