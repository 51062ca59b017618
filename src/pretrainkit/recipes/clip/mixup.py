"""The shares and coins of coin-flipping mixup (Cui et al. 2022, https://arxiv.org/abs/2112.09331): a function of the
step, the same sequence as in ZeroVL's released code. Torch-free."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.clip.config import MixupConfig

_FEWEST_STEPS = 1024


def mixup_of_step(config: MixupConfig, step: int) -> NDArray[np.float32]:
    """(2,): the share that each pair keeps of itself, in [0, 1], and 1 where images are mixed, 0 where texts are.

    For every step a share is drawn from Beta(beta, beta), then a number in [0, 1), which mixes images if above 0.5,
    both from one NumPy `RandomState(config.seed)`.
    """
    if step < 0:
        raise ValueError(f"there is no step {step}; the first is 0")
    num_steps = max(_FEWEST_STEPS, 1 << step.bit_length())  # grows by doubling, so that few lengths are ever drawn
    return _drawn(config.beta, config.seed, num_steps)[step].copy()


@lru_cache(maxsize=4)
def _drawn(beta: float, seed: int, num_steps: int) -> NDArray[np.float32]:
    """(num_steps, 2) for the first steps. The two distributions take turns on one stream, so they are drawn one by
    one."""
    stream = np.random.RandomState(seed)
    rows = [(stream.beta(beta, beta), stream.uniform() > 0.5) for _ in range(num_steps)]
    found = np.array(rows, np.float32)
    found.flags.writeable = False
    return found
