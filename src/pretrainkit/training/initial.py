"""Assignment of a checkpoint's tensors to the tensors of a new model, by names and shapes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pretrainkit.dist.weights import Shape, listed
from pretrainkit.errors import CheckpointError
from pretrainkit.training.run import InitConfig


@dataclass(frozen=True)
class InitialPlan:
    """Sources of a new model's tensors."""

    sources: Mapping[str, str]
    """Tensor of the model to tensor of the checkpoint. Tensors without an entry keep their random values."""
    drawn: tuple[str, ...]
    """Tensors that keep their random values."""
    ignored: tuple[str, ...]
    """Tensors of the checkpoint that are not used."""


def plan_initial(
    expected: Mapping[str, Shape],
    available: Mapping[str, Shape],
    config: InitConfig,
    origin: str,
    architectures: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> InitialPlan:
    """Assign tensors of a checkpoint, with the shapes `available`, to those of a model, with the shapes `expected`.

    `architectures` are `config.base.architecture` of the model and of the checkpoint's model: even with equal shapes
    they may compute different things. They are not compared if `config` allows tensors to differ. Raises
    CheckpointError, which lists all problems, if tensors are missing, unused or of another shape, or if a pattern
    matches nothing.
    """
    problems = []
    renamed: dict[str, str | None] = {}  # name in the model to name in the checkpoint; None: keep random values
    for rule in config.rename:
        matches = [(name, match) for name in expected if (match := re.fullmatch(rule.pattern, name))]
        if not matches:
            problems.append(f"init.rename: {rule.pattern!r} matches no tensor of the model")
        for name, match in matches:
            if name not in renamed:  # the first rule that matches a name counts
                renamed[name] = None if rule.to is None else match.expand(rule.to)
    growing: set[str] = set()
    for pattern in config.grow:
        names = {name for name in expected if re.fullmatch(pattern, name)}
        if not names:
            problems.append(f"init.grow: {pattern!r} matches no tensor of the model")
        growing |= names
    # No other tensor reads the sources of renamed tensors, or tensors with the same name as one that stays random.
    consumed = {name if source is None else source for name, source in renamed.items()}
    sources = {name: source for name, source in renamed.items() if source is not None}
    sources |= {name: name for name in expected if name not in renamed and name in available and name not in consumed}
    missing = [name for name in expected if name not in renamed and name not in sources]
    absent = [f"{source} (for {name})" for name, source in sources.items() if source not in available]
    left_over = sorted(set(available) - set(sources.values()) - consumed)
    shapes = [
        f"{name}: {list(available[source])} in the checkpoint, {list(expected[name])} in the model"
        for name, source in sources.items()
        if source in available and not _fits(expected[name], available[source], name in growing)
    ]
    may_differ = bool(config.rename or config.grow) or config.missing == "random" or config.unexpected == "ignore"
    here, there = architectures
    differing = [name for name in here if name in there and here[name] != there[name]] if not may_differ else []
    lines = [
        *listed("tensors missing in the checkpoint:", missing if config.missing == "error" else []),
        *listed("tensors that init.rename reads but the checkpoint lacks:", absent),
        *listed("tensors that the model does not have:", left_over if config.unexpected == "error" else []),
        *listed("tensors of another shape:", shapes),
        *[f"model.{name}: {there[name]} in the checkpoint, {here[name]} in the model" for name in differing[:3]],
        *problems,
    ]
    if lines:
        advice = ["use the config that it was trained with (config.yaml in its run folder)"]
        if shapes:
            advice.append("init.grow=[NAME] allows a larger table, init.rename=[{pattern: NAME}] keeps random values")
        if missing or absent:
            advice.append("init.missing=random keeps random values for missing tensors")
        if left_over:
            advice.append("init.unexpected=ignore ignores unknown tensors")
        details = "\n".join(f"  {line}" for line in [*lines, "; or ".join(advice)])
        raise CheckpointError(f"{origin} belongs to another model\n{details}")
    drawn = tuple(name for name in expected if name not in sources)
    return InitialPlan(sources, drawn, tuple(left_over))


def _fits(here: Shape, there: Shape, may_grow: bool) -> bool:
    if may_grow:
        return len(here) == len(there) and all(own >= other for own, other in zip(here, there, strict=True))
    return here == there
