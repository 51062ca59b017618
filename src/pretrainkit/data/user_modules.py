"""Modules of users, which make their tasks known when they are imported."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from pretrainkit.errors import ConfigError


def import_modules(modules: Iterable[str]) -> None:
    """Imports each of `modules`, a dotted name or the path of a `.py` file, once per process.

    The folder of a file is put at the end of Python's search path, as a script's is at its beginning: a file imports
    those beside it.

    Raises:
        ConfigError: There is no such module, or it fails.
    """
    for module in modules:
        try:
            if module.endswith(".py"):
                _import_file(Path(module).absolute())
            else:
                importlib.import_module(module)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"the module {module} cannot be imported: {type(error).__name__}: {error}\n"
                "  give a dotted name that Python finds, or the path of a .py file; --debug shows where it failed"
            ) from error


def _import_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"there is no module {path}\n  check the path; it is relative to where you are")
    digest = hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()
    name = f"_pretrainkit_user_{path.stem}_{digest}"
    if name in sys.modules:
        return
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
