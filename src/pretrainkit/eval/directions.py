"""Directions in which metrics become better."""

from collections.abc import Mapping

FALLS, RISES = "falls", "rises"
DIRECTIONS: Mapping[str, str] = dict.fromkeys(("*loss", "loss_per_*", "nll_per_*", "cut_*"), FALLS) | dict.fromkeys(
    (
        *("*accuracy", "*acc1", "*acc5", "*precision", "*recall", "*f1", "*em", "*exact_match", "*bleu", "*rouge*"),
        *("*corrcoef", "*score", "*uas", "*las", "*R@*", "*RSUM"),
    ),
    RISES,
)
"""Patterns of the names of metrics with the direction in which they become better: of losses, and of the metrics of
this package and of fine-tuning. Recipes add those of their own to `Recipe.directions`."""
