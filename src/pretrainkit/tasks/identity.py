"""A JSON description of a value that changes with the code of a function, its settings, and the data that it uses.

Fingerprints of task caches and of the data of runs contain it, so an edited preprocessor makes a cache outdated.
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
"""Modules of this package, and their former names in `pretrainkit.data`."""
_PLAIN = (bool, int, float, str, bytes, list, tuple, dict, set, frozenset, re.Pattern, type(None))
_OWN_PACKAGE = "pretrainkit."
_OWN_CODE = "1"
"""Version of our own preprocessors. Raise it when one of them returns other examples for the same records."""


def identity(value: Any, within: tuple[int, ...] = ()) -> Any:
    """Return a JSON value that describes `value`. `within` has the ids of the values around it, because values may
    refer to each other.

    The description of a function has its code, its defaults, its enclosed variables, and the plain data and functions
    of its own module that it uses. That of an object has its class, the code of its `__call__`, and its public
    attributes. Functions of other modules count by name only. Code means bytecode, which depends on the version of
    Python. Functions and classes of pretrainkit count by name and `_OWN_CODE`, so that rewording them
    changes nothing.
    """
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
        return ["pattern", identity(value.pattern, inside), value.flags]
    if isinstance(value, (list, tuple)):
        return [identity(item, inside) for item in value]
    if isinstance(value, (set, frozenset)):
        return ["set", sorted(repr(identity(item, inside)) for item in value)]
    if isinstance(value, Mapping):
        return {repr(key): identity(item, inside) for key, item in value.items()}
    if isinstance(value, np.generic):
        return ["number", value.dtype.str, repr(value.item())]
    if isinstance(value, np.ndarray):
        return ["array", value.dtype.str, list(value.shape), _hex(np.ascontiguousarray(value).tobytes())]
    if isinstance(value, functools.partial):
        return ["partial", *(identity(part, inside) for part in (value.func, value.args, value.keywords))]
    if isinstance(value, FunctionType):
        return _of_function(value, inside)
    if inspect.ismethod(value):
        return ["method", identity(value.__func__, inside), identity(value.__self__, inside)]
    if inspect.isclass(value) or inspect.isbuiltin(value) or inspect.ismodule(value):
        return ["name", _first_name(getattr(value, "__module__", "")), getattr(value, "__qualname__", value.__name__)]
    return _of_object(value, inside)


def _of_function(function: FunctionType, inside: tuple[int, ...]) -> Any:
    enclosed = [cell.cell_contents for cell in function.__closure__ or ()]
    code = _code(function)
    used = {}
    if code != _OWN_CODE:
        for name in sorted(_names(function.__code__) & function.__globals__.keys()):
            value = function.__globals__[name]
            is_near = isinstance(value, FunctionType) and value.__module__ == function.__module__
            if is_near or isinstance(value, _PLAIN):
                used[name] = identity(value, inside)
    settings = [identity(part, inside) for part in (function.__defaults__, function.__kwdefaults__, enclosed)]
    return ["function", function.__qualname__, code, *settings, used]


def _of_object(value: Any, inside: tuple[int, ...]) -> Any:
    kind = type(value)
    if dataclasses.is_dataclass(value):
        attributes = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        attributes = {name: item for name, item in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    call = inspect.getattr_static(kind, "__call__", None)
    code = _code(call) if isinstance(call, FunctionType) else ""
    return ["object", f"{_first_name(kind.__module__)}.{kind.__qualname__}", code, identity(attributes, inside)]


def _first_name(module: str | None) -> str | None:
    """Return the name that caches and runs first recorded for a module, so that moving it changes no fingerprint."""
    package, _, name = (module or "").rpartition(".")
    if package != __package__:
        return module
    return f"pretrainkit.data.{_RENAMED.get(name, name)}"


def _names(code: CodeType) -> set[str]:
    """Return the names of globals and attributes that code uses, including functions inside it."""
    inner = (_names(item) for item in code.co_consts if isinstance(item, CodeType))
    return set(code.co_names).union(*inner)


def _code(function: FunctionType) -> str:
    """Return a digest of what a function does, which does not depend on its place in the file."""
    return _OWN_CODE if (function.__module__ or "").startswith(_OWN_PACKAGE) else _digest(function.__code__)


def _digest(code: CodeType) -> str:
    constants = [_digest(item) if isinstance(item, CodeType) else _constant(item) for item in code.co_consts]
    return _hex(repr((code.co_code, code.co_names, code.co_varnames, constants)).encode())


def _constant(value: Any) -> str:
    """Return a constant as text; sets are sorted, because Python orders them differently in every process."""
    if isinstance(value, frozenset):
        return f"set {sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return repr(value)


def _hex(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
