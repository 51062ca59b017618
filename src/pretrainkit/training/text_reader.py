"""How a text encoder wants its texts: what ids they become, and what stands around them. Torch-free.

Dimensions: B examples, M tokens of all texts together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class TextReader:
    """Texts to ids, and the control tokens of single texts and pairs."""

    encode: Callable[[Sequence[str]], tuple[Ids, NDArray[np.int64]]]
    """Texts to the ids of all of them one after another, (M,), and (B,) how many each has; no control tokens."""
    before: tuple[int, ...]
    """Ids in front of the first text, such as [CLS]."""
    between: tuple[int, ...]
    """Ids between the two texts of a pair, such as [SEP]; they count to the first."""
    after: tuple[int, ...]
    """Ids behind the last text."""
    fingerprint: str
    """Changes whenever ids could."""
    max_positions: int | None = None
    """Most tokens that the encoder can read; None: any number."""

    def num_added(self, *, is_pair: bool) -> int:
        """Control tokens of an example."""
        return len(self.before) + len(self.after) + (len(self.between) if is_pair else 0)
