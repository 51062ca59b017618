"""How much of an image is left at each time.

Dimensions: T times.
Sources: Ho et al. 2020, https://arxiv.org/abs/2006.11239; Nichol & Dhariwal 2021, https://arxiv.org/abs/2102.09672;
shifted: Hoogeboom et al. 2023, https://arxiv.org/abs/2301.11093; ending in noise: Lin et al. 2023,
https://arxiv.org/abs/2305.08891.
"""

import numpy as np
from numpy.typing import NDArray

from pretrainkit.recipes.image_tokenizer.model_config import NoiseConfig

_LEAST, _MOST = 1e-4, 0.02
_OFFSET = 0.008
_MOST_AT_ONCE = 0.999
_LARGEST_LOG_RATIO = 15.0


def signal_shares(config: NoiseConfig) -> NDArray[np.float64]:
    """(T,) the share of the image in the variance, from nearly 1 down to (where it ends in noise) 0."""
    num = config.num_times
    if config.schedule == "shifted_cosine":
        with np.errstate(divide="ignore"):
            log_ratio = -2 * (np.log(np.tan(np.pi * np.linspace(0, 1, num) / 2)) + np.log(config.shift))
        shares_T: NDArray[np.float64] = 1 / (1 + np.exp(-log_ratio.clip(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)))
        shares_T[-1] = 0.0
        return shares_T
    if config.schedule == "linear":
        variances_T = np.linspace(_LEAST, _MOST, num)
    else:
        ends = np.cos((np.arange(num + 1) / num + _OFFSET) / (1 + _OFFSET) * np.pi / 2) ** 2
        variances_T = np.minimum(1 - ends[1:] / ends[:-1], _MOST_AT_ONCE)
    shares_T = np.cumprod(1 - variances_T, dtype=np.float64)
    if not config.ends_in_noise:
        return shares_T
    roots_T: NDArray[np.float64] = np.sqrt(shares_T)
    return ((roots_T - roots_T[-1]) * roots_T[0] / (roots_T[0] - roots_T[-1])) ** 2


def trailing_times(num_times: int, num_steps: int) -> list[int]:
    """Times of a sampling with so many steps, from the last one down, evenly."""
    num_steps = min(num_steps, num_times)
    return [round(num_times - place * num_times / num_steps) - 1 for place in range(num_steps)]
