"""What every metric of targets and predictions asks for first."""

from collections.abc import Sequence
from typing import Any

from pretrainkit.errors import DataError


def check_pairs(targets: Sequence[Any], predictions: Sequence[Any]) -> None:
    """Raises DataError where there is nothing to judge, or not one prediction for each target."""
    if len(targets) != len(predictions):
        raise DataError(
            f"there are {len(targets)} targets and {len(predictions)} predictions\n  give one prediction per target"
        )
    if not len(targets):
        raise DataError("there is nothing to judge: no target and no prediction\n  check the split and num_examples")
