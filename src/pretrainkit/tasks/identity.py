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
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from pretrainkit.tasks.vocabulary import Vocabulary

_RENAMED = {"task": "task_definitions", "sources": "task_sources", "steps": "task_steps"}
"""Modules of this package by what they were called in `data`."""
_PLAIN = (bool, int, float, str, bytes, list, tuple, dict, set, frozenset, re.Pattern, type(None))


def identity(value: Any) -> Any:
    """A JSON value.

    Functions are told apart by their code, defaults, the variables they enclose, and what they use of their own module:
    plain data and functions. Objects are told apart by their class, the code of its `__call__`, and their public
    attributes. What other modules do is not looked at. Code depends on the version of Python.
    """
    return _identity(value, ())


def _identity(value: Any, within: tuple[int, ...]) -> Any:
    """`within`: ids of the values that are being described, which may refer to each other."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if id(value) in within:
        return ["again"]
    inside = (*within, id(value))
    if isinstance(value, Vocabulary):
        return ["vocabulary", value.fingerprint]
    if isinstance(value, bytes):
        return ["bytes", _hex(value)]
    if isinstance(value, Path):
        return ["path", str(value)]
    if isinstance(value, re.Pattern):
        return ["pattern", _identity(value.pattern, inside), value.flags]
    if isinstance(value, (list, tuple)):
        return [_identity(item, inside) for item in value]
    if isinstance(value, (set, frozenset)):
        return ["set", sorted(repr(_identity(item, inside)) for item in value)]
    if isinstance(value, Mapping):
        return {repr(key): _identity(item, inside) for key, item in value.items()}
    if isinstance(value, np.generic):
        return ["number", value.dtype.str, repr(value.item())]
    if isinstance(value, np.ndarray):
        return ["array", value.dtype.str, list(value.shape), _hex(np.ascontiguousarray(value).tobytes())]
    if isinstance(value, functools.partial):
        return ["partial", *(_identity(part, inside) for part in (value.func, value.args, value.keywords))]
    if isinstance(value, FunctionType):
        return _of_function(value, inside)
    if inspect.ismethod(value):
        return ["method", _identity(value.__func__, inside), _identity(value.__self__, inside)]
    if inspect.isclass(value) or inspect.isbuiltin(value) or inspect.ismodule(value):
        return ["name", _first_name(getattr(value, "__module__", "")), getattr(value, "__qualname__", value.__name__)]
    return _of_object(value, inside)


def _of_function(function: FunctionType, inside: tuple[int, ...]) -> Any:
    enclosed = [cell.cell_contents for cell in function.__closure__ or ()]
    own = {}
    for name in sorted(_names(function.__code__) & function.__globals__.keys()):
        used = function.__globals__[name]
        is_own = isinstance(used, FunctionType) and used.__module__ == function.__module__
        if is_own or isinstance(used, _PLAIN):
            own[name] = _identity(used, inside)
    settings = [_identity(part, inside) for part in (function.__defaults__, function.__kwdefaults__, enclosed)]
    return ["function", function.__qualname__, _code(function.__code__), *settings, own]


def _of_object(value: Any, inside: tuple[int, ...]) -> Any:
    kind = type(value)
    if dataclasses.is_dataclass(value):
        attributes = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        attributes = {name: item for name, item in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    call = inspect.getattr_static(kind, "__call__", None)
    code = _code(call.__code__) if isinstance(call, FunctionType) else ""
    return ["object", f"{_first_name(kind.__module__)}.{kind.__qualname__}", code, _identity(attributes, inside)]


def _first_name(module: str | None) -> str | None:
    """What a module was called when caches and runs first noted it; a module that moves changes no fingerprint."""
    package, _, name = (module or "").rpartition(".")
    if package != __package__:
        return module
    return f"pretrainkit.data.{_RENAMED.get(name, name)}"


def _names(code: CodeType) -> set[str]:
    """Names of globals (and attributes) that code uses, that of functions within it too."""
    inner = (_names(item) for item in code.co_consts if isinstance(item, CodeType))
    return set(code.co_names).union(*inner)


def _code(code: CodeType) -> str:
    """Digest of what a function does: not of where it stands."""
    constants = [_code(item) if isinstance(item, CodeType) else _constant(item) for item in code.co_consts]
    return _hex(repr((code.co_code, code.co_names, code.co_varnames, constants)).encode())


def _constant(value: Any) -> str:
    """Its form in text; that of a set, which Python orders differently in every process, sorted."""
    if isinstance(value, frozenset):
        return f"set {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return repr(value)


def _hex(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
