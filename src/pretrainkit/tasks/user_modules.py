"""Import of users' modules, which register their tasks, and access to objects in them by name."""

import hashlib
import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pretrainkit.errors import ConfigError

_log = logging.getLogger(__name__)


def import_modules(modules: Iterable[str]) -> None:
    """Import each of `modules`, a dotted name or the path of a `.py` file, once per process.

    The folder of a file is added to the end of Python's search path, so that the file can import its neighbours. If an
    absolute path, such as one that a run has recorded, does not exist, a file of its name in the current folder takes
    its place, with a warning: models are used on other machines. Raises ConfigError if a module does not exist or its
    import fails.
    """
    for module in modules:
        _import(module)


def user_object(spec: str) -> Any:
    """Return the object `module:NAME` or `path/of/a/file.py:NAME`; `import_modules` describes the import. Raises
    ConfigError if the module or the name does not exist, or the import fails."""
    module, colon, name = spec.rpartition(":")
    if not colon:
        raise ConfigError(f"{spec!r} has no name after a colon\n  write module:NAME or path/of/a/file.py:NAME")
    objects = vars(_import(module))
    if name not in objects:
        raise ConfigError(
            f"the module {module} has no {name!r}\n"
            f"  it has {', '.join(key for key in objects if not key.startswith('_')) or 'no public names'}"
        )
    return objects[name]


def _import(module: str) -> ModuleType:
    try:
        if module.endswith(".py"):
            return _import_file(_existing(Path(module)))
        return importlib.import_module(module)
    except ConfigError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("pretrainkit.data."):
            raise ConfigError(
                f"the module {module} imports {error.name}; tasks and their parts are in pretrainkit.tasks now\n"
                "  such as: from pretrainkit.tasks.task import Task, add_task"
            ) from error
        raise ConfigError(
            f"the module {module} cannot be imported: {type(error).__name__}: {error}\n"
            "  pass a dotted name that Python can import, or the path of a .py file; --debug shows where it failed"
        ) from error


@cache  # reports each file once
def _warn_of_copy(path: Path) -> None:
    _log.warning("there is no module %s; using %s of the current folder", path, path.name)


def _existing(path: Path) -> Path:
    """Return the absolute path, or that of the file that takes its place."""
    if path.is_file():
        return path.absolute()
    if not path.is_absolute():
        raise ConfigError(f"there is no module {path}\n  check the path; it is relative to the current folder")
    copy = Path(path.name).absolute()
    if not copy.is_file():
        raise ConfigError(f"there is no module {path}\n  check the path, or copy the file to the current folder")
    _warn_of_copy(path)
    return copy


def _import_file(path: Path) -> ModuleType:
    digest = hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()
    name = f"_pretrainkit_user_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before its execution, so that its objects can be pickled
    try:
        spec.loader.exec_module(module)
    except BaseException:  # also Ctrl-C: the next import must not get an incomplete module
        del sys.modules[name]
        raise
    return module
