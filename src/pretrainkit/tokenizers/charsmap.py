"""SentencePiece's normalisation table, read out: which strings it replaces by which.

The table is a double-array trie (darts-clone) of UTF-8 keys, whose values are offsets of zero-terminated replacements.
"""

import numpy as np
from numpy.typing import NDArray

_LABEL = np.uint32(1 << 31 | 0xFF)


def read_rules(charsmap: bytes) -> dict[str, str]:
    """All rules: from one to four characters to their replacement. At every place the longest one applies.

    Args:
        charsmap: `normalizer_spec.precompiled_charsmap` of a model; empty where it normalises nothing.
    """
    if not charsmap:
        return {}
    num_bytes = int.from_bytes(charsmap[:4], "little")
    units = np.frombuffer(charsmap, "<u4", num_bytes // 4, 4)
    texts = charsmap[4 + num_bytes :]
    rules = {}
    places, keys = np.zeros(1, np.int64), np.empty((1, 0), np.uint8)
    while len(places):
        children, leaves = _children(units, places)
        for key, leaf in zip(keys[leaves >= 0], leaves[leaves >= 0].tolist()):
            begin = int(units[leaf]) & 0x7FFFFFFF
            rules[key.tobytes().decode()] = texts[begin : texts.index(b"\0", begin)].decode()
        parent, byte = np.nonzero(children >= 0)
        keys = np.hstack([keys[parent], (byte + 1).astype(np.uint8)[:, None]])
        places = children[parent, byte]
    return rules


def _children(units: NDArray[np.uint32], places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """((N, 255) place of the child for every byte but 0, (N,) place of the value); -1 where there is none."""
    unit = units[places].astype(np.int64)
    base = places ^ (unit >> 10 << ((unit & 1 << 9) >> 6))
    labels = np.arange(1, 256)
    children = base[:, None] ^ labels
    is_inside = children < len(units)
    is_child = is_inside & ((units[np.where(is_inside, children, 0)] & _LABEL) == labels)
    return np.where(is_child, children, -1), np.where(unit >> 8 & 1, base, -1)
