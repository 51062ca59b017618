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
    places: NDArray[np.unsignedinteger] = np.zeros(1, np.uint32)
    keys = np.empty((1, 0), np.uint8)
    while len(places):
        unit = units[places]
        base = places ^ (unit >> 10 << ((unit & 1 << 9) >> 6))
        is_leaf = (unit >> 8 & 1).astype(np.bool_)
        for key, begin in zip(keys[is_leaf], (units[base[is_leaf]] & 0x7FFFFFFF).tolist()):
            rules[key.tobytes().decode()] = texts[begin : texts.index(b"\0", begin)].decode()
        children = base[:, None] ^ np.arange(1, 256, dtype=np.uint32)
        labels = units.take(children, mode="clip") & _LABEL
        parent, byte = np.nonzero((labels == np.arange(1, 256)) & (children < len(units)))
        keys = np.hstack([keys[parent], (byte + 1).astype(np.uint8)[:, None]])
        places = children[parent, byte]
    return rules
