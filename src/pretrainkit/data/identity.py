"""What a value is, as JSON: changes when the code of a function, its settings, or data it refers to do.

Fingerprints of caches are made from it, so that an edited preprocessor makes a cache stale.
"""

import dataclasses
import functools
import hashlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from pretrainkit.data.vocabulary import Vocabulary


def identity(value: Any) -> Any:
    """A JSON value. Functions are told apart by their code, defaults and the variables they enclose; objects by their
    class, the code of its `__call__`, and their attributes. Code depends on the version of Python."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Vocabulary):
        return ["vocabulary", value.fingerprint]
    if isinstance(value, bytes):
        return ["bytes", _hex(value)]
    if isinstance(value, Path):
        return ["path", str(value)]
    if isinstance(value, re.Pattern):
        return ["pattern", value.pattern, value.flags]
    if isinstance(value, (list, tuple)):
        return [identity(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return ["set", sorted(repr(identity(item)) for item in value)]
    if isinstance(value, Mapping):
        return {str(key): identity(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return ["array", value.dtype.str, list(value.shape), _hex(np.ascontiguousarray(value).tobytes())]
    if isinstance(value, functools.partial):
        return ["partial", identity(value.func), identity(value.args), identity(value.keywords)]
    if inspect.isfunction(value):
        enclosed = [cell.cell_contents for cell in value.__closure__ or ()]
        settings = [identity(value.__defaults__), identity(value.__kwdefaults__), identity(enclosed)]
        return ["function", value.__qualname__, _code(value.__code__), *settings]
    if inspect.ismethod(value):
        return ["method", identity(value.__func__), identity(value.__self__)]
    if inspect.isclass(value) or inspect.isbuiltin(value) or inspect.ismodule(value):
        return ["name", getattr(value, "__module__", ""), getattr(value, "__qualname__", value.__name__)]
    return _of_object(value)


def _of_object(value: Any) -> Any:
    kind = type(value)
    if dataclasses.is_dataclass(value):
        attributes = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        attributes = {name: item for name, item in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    call = inspect.getattr_static(kind, "__call__", None)
    code = _code(call.__code__) if inspect.isfunction(call) else ""
    return ["object", f"{kind.__module__}.{kind.__qualname__}", code, identity(attributes)]


def _code(code: CodeType) -> str:
    """Digest of what a function does: not of where it stands."""
    constants = [_code(item) if isinstance(item, CodeType) else repr(item) for item in code.co_consts]
    # The docstring is the first constant and decides nothing, but nothing tells it from other constants reliably.
    return _hex(repr((code.co_code, code.co_names, code.co_varnames, constants)).encode())


def _hex(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
