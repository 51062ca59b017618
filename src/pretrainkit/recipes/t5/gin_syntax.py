"""The syntax of gin files: includes, macros, scopes, imports and overrides have the same meaning as in gin. Imports no
torch. Source: https://github.com/google/gin-config
"""

import ast
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

from pretrainkit.config.yaml import read_text
from pretrainkit.errors import ConfigError, import_optional


class Reference(NamedTuple):
    """A configurable (@name) that a value names."""

    name: str


class _Macro(NamedTuple):
    name: str


class Binding(NamedTuple):
    """One value of a gin file."""

    scope: str
    owner: str
    """Last part of the configurable's name, such as T5Config."""
    argument: str
    value: Any
    line: str
    """File, number and text, for messages."""


Key = tuple[str, str, str]


class GinFile:
    """All bindings and macros of a file and its includes, of which the last of each name counts."""

    def __init__(self, path: Path, settings: Iterable[str] = ()) -> None:
        """Raise ConfigError if a file cannot be parsed or an include is not found, MissingPackageError if gin-config
        is not installed."""
        self._parser = import_optional("gin.config_parser", "t5x", f"reading {path}", package="gin-config")
        self.bindings: dict[Key, Binding] = {}
        self.modules: set[str] = set()
        """Names of the modules that are imported."""
        self._macros: dict[str, Any] = {}
        self._read(path.absolute(), ())
        for setting in settings:
            name, has_value, value = setting.partition("=")
            if not has_value:
                raise ConfigError(
                    f"{setting} has no value: bindings are written NAME=VALUE\n"
                    "  for several gin files, import one that includes the others"
                )
            self._parse(f"{name.removeprefix('gin.')} = {_quoted(value)}", setting, path.absolute(), ())

    def _read(self, path: Path, outer: tuple[Path, ...]) -> None:
        if path in outer:
            raise ConfigError(f"{path} includes itself\n  remove the include")
        self._parse(read_text(path), str(path), path, (*outer, path))

    def _parse(self, text: str, origin: str, path: Path, outer: tuple[Path, ...]) -> None:
        class Delegate(self._parser.ParserDelegate):  # type: ignore[name-defined]
            def configurable_reference(self, name: str, evaluate: bool) -> Reference:
                return Reference(name.rpartition("/")[2].rpartition(".")[2])

            def macro(self, name: str) -> _Macro:
                return _Macro(name)

        try:
            statements = list(self._parser.ConfigParser(text, Delegate()))
        except SyntaxError as error:
            raise ConfigError(f"{origin} is not a gin file: {error.msg}, line {error.lineno}\n  correct it") from None
        except (TokenError, ValueError, RecursionError, MemoryError) as error:
            raise ConfigError(f"{origin} is not a gin file: {error}\n  close every bracket and quote") from None
        for statement in statements:
            if isinstance(statement, self._parser.IncludeStatement):
                self._read(_included(statement.filename, path), outer)
            elif isinstance(statement, self._parser.ImportStatement):
                self.modules.add(statement.module)
            elif isinstance(statement, self._parser.BindingStatement):
                owner, argument = statement.selector.rpartition(".")[2], statement.arg_name
                if not argument:
                    self._macros[owner] = statement.value
                    continue
                place = statement.location
                line = f"{origin}:{place.line_num}: {place.line_content.strip()}"
                key = (statement.scope, statement.selector if argument == "num_decodes" else owner, argument)
                self.bindings[key] = Binding(statement.scope, owner, argument, statement.value, line)

    def resolved(self, value: Any, line: str) -> Any:
        """Return a value with its macros replaced. Raises ConfigError if a macro has no value."""
        if isinstance(value, _Macro):
            if value.name == "gin.REQUIRED" or value.name not in self._macros:
                raise ConfigError(f"{line}\n  its value is not given: add it to the file")
            inner = self._macros[value.name]
            if inner == _Macro("gin.REQUIRED"):
                raise ConfigError(f"{line}\n  {value.name} is required: give it as {value.name}=VALUE")
            return self.resolved(inner, line)
        if isinstance(value, Mapping):
            return {key: self.resolved(item, line) for key, item in value.items()}
        if isinstance(value, list | tuple) and not isinstance(value, Reference):
            return type(value)(self.resolved(item, line) for item in value)
        return value


def _quoted(value: str) -> str:
    """Return a command-line value in the syntax of gin: quote a text again, because the shell removed its quotes."""
    try:
        ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return value if value.startswith(("%", "@")) else repr(value)
    return value


def _included(name: str, path: Path) -> Path:
    """Return the path of an included file, which is relative to a folder above the including file."""
    for folder in (*path.parents, Path.cwd()):
        if os.path.isfile(folder / name):  # False also for names that no file can have
            return folder / name
    raise ConfigError(
        f"{path} includes {name}, which is not in a folder above it\n  copy it there, or clone its project"
    )
