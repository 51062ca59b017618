"""All targets by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `support`

import targets_data
import targets_models
import targets_text

_ALL = [*targets_text.TARGETS, *targets_data.TARGETS, *targets_models.TARGETS]
TARGETS = {target.name: target for target in _ALL}
