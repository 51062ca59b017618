"""Modules of users, which make their tasks known when they are imported, and objects in them by name."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from pretrainkit.errors import ConfigError


def import_modules(modules: Iterable[str]) -> None:
    """Imports each of `modules`, a dotted name or the path of a `.py` file, once per process.

    The folder of a file is put at the end of Python's search path, as a script's is at its beginning: a file imports
    those beside it. Raises ConfigError where there is no such module, or it fails.
    """
    for module in modules:
        _import(module)


def user_object(spec: str) -> Any:
    """What `module:NAME` or `path/of/a/file.py:NAME` names; the module is imported as by `import_modules`. Raises
    ConfigError where there is no such module or nothing of that name in it, or it fails."""
    module, colon, name = spec.rpartition(":")
    if not colon:
        raise ConfigError(f"{spec!r} names nothing in a module\n  write module:NAME or path/of/a/file.py:NAME")
    found = vars(_import(module))
    if name not in found:
        raise ConfigError(
            f"the module {module} has nothing called {name!r}\n"
            f"  it has {', '.join(key for key in found if not key.startswith('_')) or 'nothing'}"
        )
    return found[name]


def _import(module: str) -> ModuleType:
    try:
        if module.endswith(".py"):
            return _import_file(Path(module).absolute())
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
            "  give a dotted name that Python finds, or the path of a .py file; --debug shows where it failed"
        ) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no module {path}\n  check the path; it is relative to where you are")
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
    sys.modules[name] = module  # first, so that what it defines can be pickled
    try:
        spec.loader.exec_module(module)
    except BaseException:  # Ctrl-C too: a module half made must not be found by the next import; it is raised on
        del sys.modules[name]
        raise
    return module
