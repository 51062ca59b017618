"""What a task says of one of its sequences."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pretrainkit.tasks.vocabulary import Vocabulary


@dataclass(frozen=True)
class Feature:
    """A named sequence that a task yields."""

    vocabulary: Vocabulary
    add_eos: bool = True
    """The steps that append EOS do so."""
    required: bool = True
    """Every example has it."""
    dtype: str = "int32"
    """NumPy's name."""
    rank: int = 1
    """Dimensions; 1 is a sequence."""

    @cached_property
    def numpy_dtype(self) -> np.dtype:
        """`dtype` for NumPy."""
        return np.dtype(self.dtype)
