"""Errors for users. Each message states the given value, the problem and how to fix it."""

import importlib
from collections.abc import Iterable
from typing import Any


class PretrainKitError(Exception):
    """Base class of all errors whose message is meant for users."""

    exit_code = 1


class InputError(PretrainKitError):
    """The input cannot be used. Nothing was computed, and no file was partly written."""

    exit_code = 2


class ConfigError(InputError):
    """One or more problems in a config; `problems` holds one message for each."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class DataError(InputError):
    """A file, corpus, tokenizer or shard is missing, broken, or does not match the others."""


class MissingSplitError(DataError):
    """A data set has no files of the requested split. If it has some that cannot be read, the error is another one."""


class CheckpointError(InputError):
    """A checkpoint is missing, damaged, or belongs to another model or other data."""


class MissingPackageError(InputError):
    """An optional package is not installed, or cannot be imported because of `reason`."""

    def __init__(self, package: str, extra: str, purpose: str, reason: str = "") -> None:
        cause = reason and f", which cannot be imported: {reason}"
        super().__init__(
            f"{purpose} needs the package {package!r}{cause}\n  install it: pip install 'pretrainkit[{extra}]'"
        )


def import_optional(module: str, extra: str, purpose: str, *, package: str = "") -> Any:
    """Import and return a module of an optional package; `package` is the package's name if it differs from the
    module's. Raises MissingPackageError, which states that `purpose` needs the package, if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and module.startswith(str(error.name))
        reason = "" if is_absent else str(error)  # such as one of its own packages that is missing
        raise MissingPackageError(package or module, extra, purpose, reason) from error


class RunError(PretrainKitError):
    """The computation failed; the message states what was saved."""


class Interrupted(PretrainKitError):
    """Stopped by a signal; the state was saved."""

    exit_code = 130
