"""How many tokens of each modality an example gets: draws from mixtures of Dirichlet distributions, for many examples
at once.

Dimensions: R examples, K components of the mixture, D modalities.

A share of n tokens is drawn, rounded down, and what is missing handed out token by token, each to the modality that is
largest in a further draw (4M, https://arxiv.org/abs/2312.06647, released code). Those further draws are independent of
the first one, so the modality they name has fixed probabilities for each component, which are computed once here
instead: the same law for a twentieth of the draws.
"""

import math

import numpy as np
from numpy.typing import NDArray

from pretrainkit import rng

_GRID = 4096
"""Points of the integral for the probability of being largest."""
_SMALLEST_LOG = 1e-300
_LARGEST_SHARE = 1 - 2**-24
"""The largest float32 below 1. Torch's Dirichlet, with which 4M draws, never gives more, so rounding down always leaves
a token to hand out."""


def component_of(keys_R: rng.Keys, weights_K: NDArray[np.float64]) -> NDArray[np.int64]:
    """(R,) components drawn in proportion to `weights_K`."""
    ends = np.cumsum(weights_K) / weights_K.sum()
    return np.minimum(np.searchsorted(ends, rng.uniform(keys_R, 1)[:, 0], side="right"), len(ends) - 1)


def whole_number(keys_R: rng.Keys, smallest: int, largest: int) -> NDArray[np.int64]:
    """(R,) uniform in smallest … largest, both included."""
    return smallest + (rng.uniform(keys_R, 1)[:, 0] * (largest - smallest + 1)).astype(np.int64)


class Shares:
    """Draws budgets from a table of concentrations."""

    def __init__(self, alphas_KD: NDArray[np.float64]) -> None:
        """
        Args:
            alphas_KD: Concentration of each modality in each component; 0: it never gets anything. At least one in
                each component is positive.
        """
        self.alphas_KD = np.asarray(alphas_KD, np.float64)
        largest_KD = np.stack([probability_of_largest(alphas_D) for alphas_D in self.alphas_KD])
        self._ends_KD = np.cumsum(largest_KD, axis=1)
        last_K = self.alphas_KD.shape[1] - 1 - (largest_KD[:, ::-1] > 0).argmax(axis=1)
        for ends_D, last in zip(self._ends_KD, last_K.tolist(), strict=True):
            ends_D[last:] = 1.0

    def draw(
        self,
        keys_R: rng.Keys,
        component_R: NDArray[np.int64],
        num_tokens_R: NDArray[np.int64],
        limits_RD: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """(R, D) tokens of each modality; what exceeds `limits_RD` is lost."""
        alphas_RD = self.alphas_KD[component_R]
        shares_RD = dirichlet(rng.fold(keys_R, 0), alphas_RD).clip(max=_LARGEST_SHARE)
        budget_RD = np.floor(shares_RD * num_tokens_R[:, None]).astype(np.int64)
        short_R = num_tokens_R - budget_RD.sum(axis=1)
        most = int(short_R.max(initial=0))
        if most > 0:
            drawn_RS = rng.uniform(rng.fold(keys_R, 1), most)
            rows, turns = np.nonzero(np.arange(most) < short_R[:, None])
            given = (drawn_RS[rows, turns][:, None] >= self._ends_KD[component_R[rows]]).sum(axis=1)
            np.add.at(budget_RD, (rows, given), 1)
        return np.minimum(budget_RD, limits_RD)


def dirichlet(keys_R: rng.Keys, alphas_RD: NDArray[np.float64]) -> NDArray[np.float64]:
    """(R, D) draws that sum to 1; concentrations of 0 give 0. Each row has a positive one."""
    logs_RD = log_gamma_draws(keys_R, alphas_RD)
    logs_RD -= logs_RD.max(axis=1, keepdims=True)
    np.exp(logs_RD, out=logs_RD)
    logs_RD /= logs_RD.sum(axis=1, keepdims=True)
    return logs_RD


def log_gamma_draws(keys_R: rng.Keys, alphas_RD: NDArray[np.float64]) -> NDArray[np.float64]:
    """(R, D) logarithms of gamma variates of unit scale, -inf where the shape is 0; no shape is too small for them.

    Marsaglia and Tsang 2000, "A simple method for generating gamma variables", for shapes above 1; a smaller one is a
    draw of shape + 1 times a power of a uniform number.
    """
    rows, columns = np.nonzero(alphas_RD > 0)
    alphas = alphas_RD[rows, columns]
    keys = rng.fold(keys_R[rows], columns)
    is_small = alphas < 1
    d = np.where(is_small, alphas + 1, alphas) - 1 / 3
    found = np.empty(len(alphas))
    pending = np.arange(len(alphas))
    attempt = 0
    while len(pending):
        uniforms = rng.uniform(rng.fold(keys[pending], attempt), 3)
        normal = np.sqrt(-2 * np.log1p(-uniforms[:, 0])) * np.cos(2 * math.pi * uniforms[:, 1])
        own = d[pending]
        cube = (1 + normal / np.sqrt(9 * own)) ** 3
        log_cube = np.log(np.maximum(cube, _SMALLEST_LOG))
        is_taken = (cube > 0) & (np.log1p(-uniforms[:, 2]) < normal * normal / 2 + own * (1 - cube + log_cube))
        found[pending[is_taken]] = (np.log(own) + log_cube)[is_taken]
        pending = pending[~is_taken]
        attempt += 1
    powers = np.log1p(-rng.uniform(rng.fold(keys[is_small], -1), 1)[:, 0])
    found[is_small] += powers / alphas[is_small]
    logs_RD = np.full(alphas_RD.shape, -np.inf)
    logs_RD[rows, columns] = found
    return logs_RD


def probability_of_largest(alphas_D: NDArray[np.float64]) -> NDArray[np.float64]:
    """(D,) how likely each is the largest of a Dirichlet draw, the same as of independent gamma variates.

    For each distinct shape, the integral over x of its density at x times the chance that all others are smaller, on
    the logarithm of x. Good to about 1e-4.
    """
    shapes, group_D = np.unique(alphas_D, return_inverse=True)
    counts = np.bincount(group_D).astype(np.float64)
    if shapes[0] == 0:
        counts[0] = 0
    is_wanted = counts > 0
    if is_wanted.sum() == 1:
        probabilities = is_wanted / counts.clip(min=1)
    else:
        probabilities = _integrated(shapes, counts, is_wanted)
    return (probabilities / (probabilities * counts).sum())[group_D]


def _integrated(
    shapes: NDArray[np.float64], counts: NDArray[np.float64], is_wanted: NDArray[np.bool_]
) -> NDArray[np.float64]:
    wanted = shapes[is_wanted]
    top = math.log(wanted[-1] + 12 * math.sqrt(wanted[-1]) + 40)
    # Below the knee a variate of shape a has the distribution x ** a / gamma(a + 1): only small shapes get there.
    knee = -6.0
    left = knee - np.geomspace(1e-3, 40 / wanted[0], _GRID)[::-1]
    logs = np.concatenate([left, np.linspace(knee, top, 4 * _GRID)])
    densities, distributions = {}, {}
    for shape in wanted.tolist():
        density = np.exp(shape * logs - np.exp(logs) - math.lgamma(shape))
        steps = np.diff(logs) * (density[1:] + density[:-1]) / 2
        begin = math.exp(shape * logs[0] - math.lgamma(shape + 1))
        whole = np.minimum(begin + np.concatenate([[0.0], np.cumsum(steps)]), 1.0)
        densities[shape], distributions[shape] = density, np.maximum(whole, _SMALLEST_LOG)
    all_smaller = sum(
        count * np.log(distributions[shape])
        for shape, count in zip(wanted.tolist(), counts[is_wanted].tolist(), strict=True)
    )
    probabilities = np.zeros(len(shapes))
    for place in np.flatnonzero(is_wanted).tolist():
        shape = float(shapes[place])
        inside = densities[shape] * np.exp(all_smaller - np.log(distributions[shape]))
        probabilities[place] = (np.diff(logs) * (inside[1:] + inside[:-1]) / 2).sum()
    return probabilities
