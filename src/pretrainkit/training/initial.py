"""Which tensor of a checkpoint each tensor of a new model starts from, by names and shapes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pretrainkit.dist.weights import Shape, listed
from pretrainkit.errors import CheckpointError
from pretrainkit.training.run import InitConfig


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
    """Lays the tensors of a checkpoint, with the shapes `given`, onto a model that has those `wanted`. Raises
    CheckpointError, with everything, where something is missing, left over, of another shape, or a pattern fits
    nothing.

    `architectures` are what `config.base.architecture` says of the model and of the checkpoint's model: with equal
    shapes they may still compute different things. They are not compared where `config` lets tensors differ.
    """
    problems = []
    renamed: dict[str, str | None] = {}  # name here to name there; None: it is drawn
    for rule in config.rename:
        matches = [(name, match) for name in wanted if (match := re.fullmatch(rule.pattern, name))]
        if not matches:
            problems.append(f"init.rename: {rule.pattern!r} fits no tensor of the model")
        for name, match in matches:
            if name not in renamed:  # the first rule that fits a name counts
                renamed[name] = None if rule.to is None else match.expand(rule.to)
    growing: set[str] = set()
    for pattern in config.grow:
        names = {name for name in wanted if re.fullmatch(pattern, name)}
        if not names:
            problems.append(f"init.grow: {pattern!r} fits no tensor of the model")
        growing |= names
    # Of the checkpoint: what a renamed tensor reads, and the namesakes of those that are drawn, are read by no other.
    consumed = {name if source is None else source for name, source in renamed.items()}
    sources = {name: source for name, source in renamed.items() if source is not None}
    sources |= {name: name for name in wanted if name not in renamed and name in given and name not in consumed}
    missing = [name for name in wanted if name not in renamed and name not in sources]
    absent = [f"{source} (for {name})" for name, source in sources.items() if source not in given]
    left_over = sorted(set(given) - set(sources.values()) - consumed)
    shapes = [
        f"{name}: {list(given[source])} there, {list(wanted[name])} here"
        for name, source in sources.items()
        if source in given and not _fits(wanted[name], given[source], name in growing)
    ]
    may_differ = bool(config.rename or config.grow) or config.missing == "random" or config.unexpected == "ignore"
    here, there = architectures
    differing = [name for name in here if name in there and here[name] != there[name]] if not may_differ else []
    lines = [
        *listed("it lacks", missing if config.missing == "error" else []),
        *listed("init.rename reads what it lacks:", absent),
        *listed("it has but the model lacks", left_over if config.unexpected == "error" else []),
        *listed("of another shape:", shapes),
        *[f"model.{name}: {there[name]} there, {here[name]} here" for name in differing[:3]],
        *problems,
    ]
    if lines:
        advice = ["use the config it was trained with (config.yaml in its run folder)"]
        if shapes:
            advice.append("init.grow=[NAME] lets a table be larger, init.rename=[{pattern: NAME}] draws it anew")
        if missing or absent:
            advice.append("init.missing=random draws what is missing")
        if left_over:
            advice.append("init.unexpected=ignore leaves the rest")
        found = "\n".join(f"  {line}" for line in [*lines, "; or ".join(advice)])
        raise CheckpointError(f"{origin} belongs to another model\n{found}")
    drawn = tuple(name for name in wanted if name not in sources)
    return InitialPlan(sources, drawn, tuple(left_over))


def _fits(here: Shape, there: Shape, may_grow: bool) -> bool:
    if may_grow:
        return len(here) == len(there) and all(own >= other for own, other in zip(here, there, strict=True))
    return here == there
