"""The errors a user can meet. Each message says what was given, what is wrong with it and what to do."""

import importlib
from collections.abc import Iterable
from typing import Any


class PretrainKitError(Exception):
    """Base of all errors that are meant to be read by a user."""

    exit_code = 1


class InputError(PretrainKitError):
    """What was given cannot be used. Nothing was computed and nothing half-written."""

    exit_code = 2


class ConfigError(InputError):
    """One or more problems in a config; `problems` lists each as a text of its own."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class DataError(InputError):
    """A file, corpus, tokenizer or shard is missing, broken, or does not match the others."""


class CheckpointError(InputError):
    """A checkpoint is missing, torn, or belongs to another model or other data."""


class MissingPackageError(InputError):
    """An optional package is needed here."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}\n  install it: pip install 'pretrainkit[{extra}]'")


def import_optional(module: str, extra: str, purpose: str, *, package: str = "") -> Any:
    """Return a module of an optional package, whose name is `package` where it differs from the module's. Raises
    MissingPackageError, which says that `purpose` needs it, where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(package or module, extra, purpose) from error


class RunError(PretrainKitError):
    """The work itself failed; the message says what was saved."""


class Interrupted(PretrainKitError):
    """Stopped by a signal; the state was saved."""

    exit_code = 130
