"""Tensors without data, for `pretrainkit plan`.

Torch has fake tensors too, but each operation on them takes about a millisecond. Tensors on "meta" are not sufficient,
because number formats (autocast), kernels and layouts depend on the device.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch


class FakeStorage:
    """Stand-in for the memory that a fake tensor and its views share. It lives as long as one of them does."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes

    def nbytes(self) -> int:
        """Return the size in bytes, like `torch.UntypedStorage.nbytes`."""
        return self._num_bytes


class _Form:
    """Everything about a tensor that determines the form of results. Equal forms are one object, for fast
    comparison."""

    __slots__ = ("dtype", "num_bytes", "offset", "seen", "shape", "shape_only", "strides")

    def __init__(self, shape_only: Tensor, seen: int) -> None:
        self.shape_only = shape_only
        self.shape, self.strides, self.dtype = shape_only.shape, shape_only.stride(), shape_only.dtype
        self.offset = shape_only.storage_offset()
        self.num_bytes = shape_only.untyped_storage().nbytes()
        self.seen = seen
        """Number that is equal for forms that differ only in their place in the storage."""


_FORMS: dict[Any, _Form] = {}
_SEEN: dict[Any, int] = {}


def _form(shape_only: Tensor) -> _Form:
    seen = (shape_only.shape, shape_only.stride(), shape_only.dtype)
    key = (seen, shape_only.storage_offset(), shape_only.untyped_storage().nbytes())
    if key not in _FORMS:
        _FORMS[key] = _Form(shape_only, _SEEN.setdefault(seen, len(_SEEN)))
    return _FORMS[key]


class FakeTensor(Tensor):
    """A tensor that claims to be on the CPU and has a shape but no data. Results of operations on it are fake as
    well."""

    form: _Form
    fake_storage: FakeStorage

    # The dispatch makes results fake; torch would otherwise look at each call of a function a second time.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, shape_only: Tensor | _Form, storage: FakeStorage | None = None) -> "FakeTensor":
        """Wrap `shape_only`, which is on "meta". `storage` is given if it is a view of another tensor's storage."""
        form = shape_only if isinstance(shape_only, _Form) else _form(shape_only)
        self: FakeTensor = Tensor._make_wrapper_subclass(
            cls, form.shape, strides=form.strides, storage_offset=form.offset, dtype=form.dtype, device=_CPU
        )
        self.form = form
        self.fake_storage = storage or FakeStorage(form.num_bytes)
        return self

    @property
    def shape_only(self) -> Tensor:
        """The tensor's form on "meta". Torch keeps its storage in reference cycles, so it does not show what is
        alive."""
        return self.form.shape_only

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        if torch.Tag.inplace_view in func.tags:  # such as transpose_, which changes the form but not the memory
            with no_dispatch():  # updates the shape that torch itself stores
                func(*args, **kwargs)
            viewed: FakeTensor = args[0]
            viewed.form = _form(func(torch.ops.aten.alias.default(viewed.form.shape_only), *args[1:], **kwargs))
            return viewed
        if func._schema.is_mutable:
            if not func._schema.returns:  # fused and foreach kernels, in place; some have no shape function
                return None
            keeps_shape = torch.Tag.pointwise in func.tags  # so only the data changes
            written = [kwargs[name] for name in _output_arguments(func)] or ([args[0]] if keeps_shape else [])
            if len(written) == 1 and written[0].numel():  # an empty tensor may get another shape
                return written[0]
            return _computed(func, args, kwargs)
        is_new = returns_new_tensors(func)
        # The forms of results depend only on the forms of arguments, not on their data.
        key = (func, _key(args, is_new), *((name, _key(value, is_new)) for name, value in kwargs.items()))
        forms = _RESULTS.get(key)
        if forms is None:
            results = _computed(func, args, kwargs)
            first = args[0] if args else None
            is_view = isinstance(first, FakeTensor) and all(
                isinstance(tensor, FakeTensor) and tensor.fake_storage is first.fake_storage
                for tensor in tensors_in(results)
            )
            if is_new or is_view:
                _RESULTS[key] = _mapped(lambda value: value.form, results)
            return results
        storage = None if is_new else args[0].fake_storage
        if type(forms) is _Form:
            return FakeTensor(forms, storage)
        return _mapped(lambda form: FakeTensor(form, storage), forms)


_CPU = torch.device("cpu")
_RESULTS: dict[Any, Any] = {}
"""Forms of results by operator and forms of its arguments. Torch takes up to milliseconds to compute them, and the
steps that are compared hardly differ."""


@cache
def returns_new_tensors(func: Any) -> bool:
    """True if an operator changes no argument and its results share no memory with one."""
    schema = func._schema
    return not schema.is_mutable and not any(result.alias_info for result in schema.returns)


@cache
def _output_arguments(func: Any) -> tuple[str, ...]:
    """Return the names of arguments that hold a tensor for a result."""
    return tuple(argument.name for argument in func._schema.arguments if argument.kwarg_only and argument.alias_info)


def _key(value: Any, is_new: bool) -> Any:
    """Return what the form of results depends on. The place in the storage matters only for views."""
    kind = type(value)
    if kind is FakeTensor:
        return value.form.seen if is_new else value.form
    if kind is int:
        return value
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.storage_offset(), kind
    if isinstance(value, (list, tuple)):
        return tuple(_key(part, is_new) for part in value)
    return kind, value


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    by_shape_only: dict[int, Tensor] = {}
    storages: dict[int, FakeStorage] = {}

    def without_numbers(value: Tensor) -> Tensor:
        if not isinstance(value, FakeTensor):
            shape_only = value.to("meta")
        else:
            shape_only = value.form.shape_only
            storages.setdefault(shape_only.untyped_storage()._cdata, value.fake_storage)
            if func._schema.is_mutable:  # tensors of the same form keep their shape
                shape_only = torch.ops.aten.alias.default(shape_only)
        # Tensors that are changed come first: as `out`, or as the first argument.
        by_shape_only.setdefault(id(shape_only), value)
        return shape_only

    def with_storage(value: Tensor) -> Tensor:
        if id(value) in by_shape_only:  # changed in place
            return by_shape_only[id(value)]
        return FakeTensor(value, storages.get(value.untyped_storage()._cdata))

    arguments = {name: _mapped(without_numbers, value) for name, value in kwargs.items()}
    if "device" in arguments:
        arguments["device"] = torch.device("meta")
    return _mapped(with_storage, func(*_mapped(without_numbers, args), **arguments))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in an operator's arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return `value` with the function applied to each tensor or form in it."""
    if isinstance(value, (Tensor, _Form)):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(function, part) for part in value)
    return value
