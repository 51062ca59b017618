"""MinHash of documents: near duplicates share a band of their signatures.

Source: Broder 1997; bands as in Lee et al. 2021, https://arxiv.org/abs/2107.06499. With the defaults, documents that
share 80 % of their runs of five words are found with probability 0.92; with 60 % it is 0.21, with 40 % it is 0.01.

Dimensions: W runs of words, H hashes, D documents, B bands.
"""

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pretrainkit.errors import DataError
from pretrainkit.rng import fold, stream_key

U64 = NDArray[np.uint64]
_RUNS_AT_ONCE = 4096
_RUN_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True)
class MinHash:
    """Settings of the signatures. Equal settings give equal signatures on every machine."""

    num_bands: int = 14
    """Number of bands, B. Two documents with an equal band are near duplicates."""
    rows_per_band: int = 8
    """Number of hashes that must agree in a band."""
    run_words: int = 5
    """Number of words in a run. Case is ignored, and so are characters that are neither letters nor digits."""

    def __post_init__(self) -> None:
        if min(self.num_bands, self.rows_per_band, self.run_words) < 1:
            raise DataError(
                f"MinHash is set to {self.num_bands} bands of {self.rows_per_band} hashes of runs of {self.run_words} "
                "words\n  give at least 1 of each"
            )

    def bands(self, text: str) -> U64:
        """Return the bands of a document, uint64 (B,). A document of fewer words than a run has one run."""
        runs_W = _runs(text, self.run_words)
        num_hashes = self.num_bands * self.rows_per_band
        # Multiplying by an odd factor is a bijection modulo 2**64, so each factor is a different hash of all runs.
        factors_H = fold(stream_key(0, "corpus.minhash"), np.arange(num_hashes, dtype=np.uint64)) | np.uint64(1)
        least_H = np.full(num_hashes, np.iinfo(np.uint64).max, np.uint64)
        for start in range(0, len(runs_W), _RUNS_AT_ONCE):
            mixed_WH = runs_W[start : start + _RUNS_AT_ONCE, None] * factors_H
            # Low bits of a product depend only on low bits. So the high bits, which depend on all bits, are mixed in.
            mixed_WH ^= mixed_WH >> np.uint64(32)
            np.minimum(least_H, (mixed_WH * _RUN_FACTOR).min(axis=0), out=least_H)
        rows = least_H.reshape(self.num_bands, self.rows_per_band)
        bands_B = np.arange(1, self.num_bands + 1, dtype=np.uint64)
        # The hash of a band starts from its number, so that equal rows in two bands give different hashes.
        for column in rows.T:
            bands_B = (bands_B ^ column) * _RUN_FACTOR
            bands_B ^= bands_B >> np.uint64(29)
        return bands_B


def _runs(text: str, length: int) -> U64:
    """Return a hash of every distinct run of words, uint64 (W,), W >= 1."""
    if text.isascii():
        plain = text.lower().translate(_ASCII)
    else:
        plain = "".join(sign if sign.isalnum() else " " for sign in text.casefold())
    words = plain.split()
    hashes = np.fromiter((zlib.crc32(word.encode()) for word in words), np.uint64, len(words))
    if len(hashes) < length:
        hashes = np.concatenate([hashes, np.zeros(length - len(hashes), np.uint64)])
    num = len(hashes) - length + 1
    runs_W = np.zeros(num, np.uint64)
    # All runs are hashed at once: step `place` mixes in word number `place` of each run.
    for place in range(length):
        runs_W = (runs_W + hashes[place : place + num] + np.uint64(1)) * _RUN_FACTOR
        runs_W ^= runs_W >> np.uint64(31)
    return np.unique(runs_W)


_ASCII = {code: " " for code in range(128) if not chr(code).isalnum()}
