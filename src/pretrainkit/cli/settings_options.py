"""Turn the fields of a settings class into options of a command, with their names, types, defaults and help.

    @app.command()
    @with_settings
    def shuffle(*, out: Out, build: Annotated[type[BuildSettings], "num_shards", changed("max_bad", default=3)]):
        settings = build(split_folders=False)  # has the fields that were given as options

The metadata name the fields that become options, in their order; without metadata, all fields do. The name of another
parameter of the command puts the options of that parameter there. A parameter annotated `type[X]` receives a function
that makes the settings, a parameter annotated `X` receives the settings.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, partial, wraps
from inspect import Parameter, Signature
from itertools import pairwise
from typing import Annotated, Any, TypeVar, get_args, get_origin

from typer import Option
from typer.models import OptionInfo

Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True)
class Chosen:
    """A field that becomes an option, with the option's own flags, default and help."""

    field: str
    option: OptionInfo
    default: Any = MISSING


def changed(field: str, *flags: str, default: Any = MISSING, **option: Any) -> Chosen:
    """Give a field another flag, default or help. `flags` and `option` are passed to `typer.Option`."""
    return Chosen(field, Option(*flags, **option), default)


def with_settings(command: Command) -> Command:
    """Give a command an option for each chosen field of those of its parameters that are settings classes."""
    own = {
        name: parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
    }
    groups = {name: group for name, parameter in own.items() if (group := _group(parameter.annotation))}
    moved = {choice.field for _, _, chosen in groups.values() for choice in chosen} & own.keys()
    shown: dict[str, Parameter] = {}

    def show(name: str) -> None:
        if name not in groups:
            shown[name] = own[name]
            return
        settings, _, chosen = groups[name]
        known = {field.name: field for field in fields(settings)}
        for choice in chosen:
            if choice.field in own:
                show(choice.field)
            else:
                shown[choice.field] = _parameter(known[choice.field], settings, choice)

    for name in own:
        if name not in moved:
            show(name)

    @wraps(command)
    def run(**given: Any) -> None:
        for name, (settings, is_class, chosen) in groups.items():
            if name not in given:  # another command may pass the whole settings
                values = {choice.field: given.pop(choice.field) for choice in chosen if choice.field not in own}
                values = {field: value for field, value in values.items() if value is not None}
                make = partial(settings, **{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
                given[name] = make if is_class else make()
        command(**given)

    run.__signature__ = Signature(list(shown.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in shown.items()}
    return run  # type: ignore[return-value]


def _group(annotation: Any) -> tuple[Any, bool, list[Chosen]] | None:
    """Return the settings class of a parameter, True if it receives a function, and the chosen fields; None if it is
    not a settings class."""
    settings, *chosen = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if is_class := get_origin(settings) is type:
        (settings,) = get_args(settings)
    if not is_dataclass(settings) or not isinstance(settings, type):
        return None
    chosen = [choice if isinstance(choice, Chosen) else changed(choice) for choice in chosen]
    return settings, is_class, chosen or [changed(field.name) for field in fields(settings)]


def _parameter(field: Field[Any], settings: Any, chosen: Chosen) -> Parameter:
    hint, *metadata = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
    option = copy(next((data for data in metadata if isinstance(data, OptionInfo)), chosen.option))
    # On the command line, an option is left out where a field is None.
    option.help = option.help or re.sub(r"\bNone\b(?=:)", "left out", _docs(settings).get(field.name, ""))
    default = field.default if chosen.default is MISSING else chosen.default
    if hint is bool and default is False and option.default is ...:
        option.default = f"--{field.name.replace('_', '-')}"  # without a --no- variant
    if get_origin(hint) is tuple:
        hint, default = list[get_args(hint)[0]] | None, default or None  # type: ignore[misc]
    return Parameter(
        field.name,
        Parameter.KEYWORD_ONLY,
        default=Parameter.empty if default is MISSING else default,
        annotation=Annotated[hint, option],
    )


@cache
def _docs(settings: Any) -> dict[str, str]:
    """Return a map from each field to the docstring below it."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value).replace("\n", " ")
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
