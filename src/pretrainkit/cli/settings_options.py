"""Options of a command that are fields of a settings class: names, types, defaults and help are those of the fields.

    @app.command()
    @with_settings
    def shuffle(*, out: Out, build: Annotated[type[BuildSettings], "num_shards", changed("max_bad", default=3)]):
        settings = build(split_folders=False)  # with the fields that were given as options

Metadata say which fields have options, in which order; without any all have. The name of another parameter of the
command has its options stand there. `type[...]` gets a function that makes the settings, the class itself the settings.
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
    """A field that has an option, and what the option has of its own."""

    field: str
    option: OptionInfo
    default: Any = MISSING


def changed(field: str, *flags: str, default: Any = MISSING, **option: Any) -> Chosen:
    """A field with another flag, default or help; `option` is for `typer.Option`."""
    return Chosen(field, Option(*flags, **option), default)


def with_settings(command: Command) -> Command:
    """Give a command an option for each chosen field of its parameters that are settings."""
    own = {
        name: one.replace(kind=Parameter.KEYWORD_ONLY) for name, one in inspect.signature(command).parameters.items()
    }
    groups = {name: found for name, one in own.items() if (found := _group(one.annotation))}
    elsewhere = {one.field for _, _, chosen in groups.values() for one in chosen} & own.keys()
    shown: dict[str, Parameter] = {}

    def show(name: str) -> None:
        if name not in groups:
            shown[name] = own[name]
            return
        settings, _, chosen = groups[name]
        known = {field.name: field for field in fields(settings)}
        for one in chosen:
            if one.field in own:
                show(one.field)
            else:
                shown[one.field] = _parameter(known[one.field], settings, one)

    for name in own:
        if name not in elsewhere:
            show(name)

    @wraps(command)
    def run(**given: Any) -> None:
        for name, (settings, is_class, chosen) in groups.items():
            if name not in given:  # which another command may give whole
                values = {one.field: given.pop(one.field) for one in chosen if one.field not in own}
                values = {field: value for field, value in values.items() if value is not None}
                make = partial(settings, **{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
                given[name] = make if is_class else make()
        command(**given)

    run.__signature__ = Signature(list(shown.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: one.annotation for name, one in shown.items()}
    return run  # type: ignore[return-value]


def _group(annotation: Any) -> tuple[Any, bool, list[Chosen]] | None:
    """The settings class of a parameter, whether the parameter gets the class, and the fields; None: no settings."""
    settings, *chosen = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if is_class := get_origin(settings) is type:
        (settings,) = get_args(settings)
    if not is_dataclass(settings) or not isinstance(settings, type):
        return None
    chosen = [one if isinstance(one, Chosen) else changed(one) for one in chosen]
    return settings, is_class, chosen or [changed(field.name) for field in fields(settings)]


def _parameter(field: Field[Any], settings: Any, chosen: Chosen) -> Parameter:
    hint, *metadata = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
    option = copy(next((one for one in metadata if isinstance(one, OptionInfo)), chosen.option))
    # "left out" is how a command line gives None.
    option.help = option.help or re.sub(r"\bNone\b(?=:)", "left out", _docs(settings).get(field.name, ""))
    default = field.default if chosen.default is MISSING else chosen.default
    if hint is bool and default is False and option.default is ...:
        option.default = f"--{field.name.replace('_', '-')}"  # alone, without its --no-
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
    """Field to the text below it."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value).replace("\n", " ")
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
