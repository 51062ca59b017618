"""The errors a user can meet. Each message says what was given, what is wrong with it and what to do.

PretrainKitError                 everything below; the command line prints it without a traceback
├── InputError                   bad input, exit code 2
│   ├── ConfigError              a config that does not hold together; lists every problem at once
│   ├── DataError                a file, corpus, tokenizer or shard that is missing, broken or does not match
│   └── CheckpointError          a checkpoint that is missing, torn, or of another model
├── MissingPackageError          an optional package is not installed; the message has the install line, exit code 2
├── RunError                     the work itself failed (non-finite loss, a save that failed), exit code 1
└── Interrupted                  stopped by a signal after saving, exit code 130
"""

from collections.abc import Iterable


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


class RunError(PretrainKitError):
    """The work itself failed; the message says what was saved."""


class Interrupted(PretrainKitError):
    """Stopped by a signal; the state was saved."""

    exit_code = 130
