"""Which tensor of a checkpoint each tensor of a new model starts from. Torch-free: it looks at names and shapes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pretrainkit.errors import CheckpointError
from pretrainkit.training.run import InitConfig

Shape = tuple[int, ...]
_NUM_SHOWN = 4


@dataclass(frozen=True)
class InitialPlan:
    """Where the values come from."""

    sources: Mapping[str, str]
    """Tensor of the model to that of the checkpoint; tensors that are not named stay as they were drawn."""
    drawn: tuple[str, ...]
    """Those."""
    ignored: tuple[str, ...]
    """Tensors of the checkpoint that nothing reads."""


def plan_initial(
    wanted: Mapping[str, Shape],
    given: Mapping[str, Shape],
    config: InitConfig,
    origin: str,
    architectures: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> InitialPlan:
    """Lays the tensors of a checkpoint onto a model.

    Args:
        wanted: Shapes of the model's tensors.
        given: Those of the checkpoint's.
        config: What may differ, and how.
        origin: Where the checkpoint comes from, for the message.
        architectures: What `config.base.architecture` says of the model and of the checkpoint's model: with equal
            shapes they may still compute different things. Not compared where `config` lets tensors differ.

    Raises:
        CheckpointError: Something is missing, left over, of another shape, or a pattern fits nothing; with everything.
    """
    renamed, problems = _renamed(wanted, config)
    consumed = {source for source in renamed.values() if source is not None} | {
        name for name, source in renamed.items() if source is None
    }
    sources = {name: source for name, source in renamed.items() if source is not None}
    sources |= {name: name for name in wanted if name not in renamed and name in given and name not in consumed}
    missing = [name for name in wanted if name not in renamed and name not in sources]
    absent = [f"{source} (for {name})" for name, source in sources.items() if source not in given]
    left_over = sorted(set(given) - set(sources.values()) - consumed)
    growing, unused = _growing(wanted, config)
    problems += unused
    shapes = [
        f"{name}: {list(given[source])} there, {list(wanted[name])} here"
        for name, source in sources.items()
        if source in given and not _fits(wanted[name], given[source], name in growing)
    ]
    may_differ = bool(config.rename or config.grow) or config.missing == "random" or config.unexpected == "ignore"
    here, there = architectures
    differing = [name for name in here if name in there and here[name] != there[name]] if not may_differ else []
    lines = [
        *_listed("it lacks", missing if config.missing == "error" else []),
        *_listed("init.rename reads what it lacks:", absent),
        *_listed("it has but the model lacks", left_over if config.unexpected == "error" else []),
        *_listed("of another shape:", shapes),
        *[f"model.{name}: {there[name]} there, {here[name]} here" for name in differing[: _NUM_SHOWN - 1]],
        *problems,
    ]
    if lines:
        raise CheckpointError(
            f"{origin} belongs to another model\n"
            + "\n".join(f"  {line}" for line in lines)
            + "\n"
            + _advice(bool(shapes), bool(missing or absent), bool(left_over))
        )
    drawn = tuple(name for name in wanted if name not in sources)
    return InitialPlan(sources, drawn, tuple(left_over))


def _renamed(wanted: Mapping[str, Shape], config: InitConfig) -> tuple[dict[str, str | None], list[str]]:
    """(name here to name there, None to draw it; patterns that fit nothing)."""
    found: dict[str, str | None] = {}
    problems = []
    for rule in config.rename:
        matches = [(name, match) for name in wanted if (match := re.fullmatch(rule.pattern, name))]
        if not matches:
            problems.append(f"init.rename: {rule.pattern!r} fits no tensor of the model")
        for name, match in matches:
            if name not in found:
                found[name] = None if rule.to is None else match.expand(rule.to)
    return found, problems


def _growing(wanted: Mapping[str, Shape], config: InitConfig) -> tuple[set[str], list[str]]:
    found: set[str] = set()
    problems = []
    for pattern in config.grow:
        names = {name for name in wanted if re.fullmatch(pattern, name)}
        if not names:
            problems.append(f"init.grow: {pattern!r} fits no tensor of the model")
        found |= names
    return found, problems


def _fits(here: Shape, there: Shape, may_grow: bool) -> bool:
    if may_grow:
        return len(here) == len(there) and all(own >= other for own, other in zip(here, there, strict=True))
    return here == there


def _listed(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
    return [f"{what} {', '.join(names[:_NUM_SHOWN])}{more}"]


def _advice(has_shapes: bool, has_missing: bool, has_left_over: bool) -> str:
    found = ["use the config it was trained with (config.yaml in its run folder)"]
    if has_shapes:
        found.append("init.grow=[NAME] lets a table be larger, init.rename=[{pattern: NAME}] draws it anew")
    if has_missing:
        found.append("init.missing=random draws what is missing")
    if has_left_over:
        found.append("init.unexpected=ignore leaves the rest")
    return "  " + "; or ".join(found)
