"""What the logits of a target are made of: views of what is known, some with conditions hidden. Torch-free.

One weight s: unseen + s (seen - unseen), where "unseen" hides all conditions. A weight for each condition: unseen + the
sum of w (with that one alone - unseen). What is no condition is always seen.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pretrainkit.recipes.fourm.generation.known import View
from pretrainkit.recipes.fourm.generation.plan import TargetConfig


class Guided(NamedTuple):
    """Views with their factors."""

    views: tuple[View, ...]
    """What is hidden in each."""
    weights: tuple[float, ...]
    """The logits of a target are the sum of those of the views times these."""


def guided(target: TargetConfig, conditions: Sequence[str]) -> Guided:
    """The views of a target; one alone where guidance changes nothing.

    Args:
        target: Whose guidance; names in it are whole.
        conditions: What it is about, where it is one number and `guided_by` does not say.
    """
    if isinstance(target.guidance, dict):
        named = {name: weight for name, weight in target.guidance.items() if weight}
        everything = frozenset(target.guidance)
        views = {everything - {name}: weight for name, weight in named.items()}
        views[everything] = views.get(everything, 0.0) + 1 - sum(named.values())
    else:
        hidden = frozenset(conditions if target.guided_by is None else target.guided_by)
        scale = target.guidance if hidden else 1.0
        views = {frozenset(): scale}
        views[hidden] = views.get(hidden, 0.0) + 1 - scale
    kept = {view: weight for view, weight in views.items() if weight}
    return Guided(tuple(kept), tuple(kept.values()))
