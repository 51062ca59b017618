"""Embeddings as whole numbers, so that scores do not depend on how they are computed. Dimensions: N rows, D width."""

import math

import torch
from torch import Tensor

_BITS = 26


def whole_numbers(vectors_ND: Tensor) -> Tensor:
    """Scaled by a power of two and rounded, as float64 (N, D), so that rows are about 2**26 long.

    By Cauchy and Schwarz every partial sum of a dot product of two rows is then a whole number below 2**53, which
    float64 holds: the product is exact, whatever the order of its additions, hence the same for any cut of the matrix
    and on any device. The rounding is finer than what a float32 product of unit vectors resolves.
    """
    wide_ND = vectors_ND.double()
    longest = float(torch.linalg.vector_norm(wide_ND, dim=1).max())
    return (wide_ND * 2.0 ** (_BITS - math.frexp(longest)[1])).round()
