"""Where tokens stand in their texts.

Dimensions: M tokens of all texts, N texts.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Ints = NDArray[np.int64]
Placed = tuple[Ids, Ints, Ints]
"""(M,) int32 ids of all texts one after another; (N,) how many each has; (M, 2) where each begins and ends in its text,
in characters. A token may stand for no character (a byte of several, or an added space): it then begins where it ends.
"""


def huggingface_offsets(model: Any, texts: Sequence[str]) -> Placed:
    """`model`: of the `tokenizers` library. Control tokens are not added."""
    found = model.encode_batch(list(texts), add_special_tokens=False)
    return _flat((one.ids for one in found), [np.array(one.offsets, np.int64).reshape(-1, 2) for one in found])


def sentencepiece_offsets(model: Any, texts: Sequence[str]) -> Placed:
    """`model`: a `SentencePieceProcessor`, which counts bytes."""
    ids, places = [], []
    for text, found in zip(texts, model.encode(list(texts), return_type="proto"), strict=True):
        pieces = found.pieces
        ids.append([piece.id for piece in pieces])
        bytes_M2 = np.array([(piece.begin, piece.end) for piece in pieces], np.int64).reshape(-1, 2)
        places.append(_characters(np.frombuffer(text.encode(), np.uint8))[bytes_M2])
    return _flat(ids, places)


def byte_offsets(texts: Sequence[str], first_id: int) -> Placed:
    """Of texts whose tokens are the bytes of UTF-8, with ids from `first_id` on; a character lies in its last byte."""
    raw = [np.frombuffer(text.encode(), np.uint8) for text in texts]
    ends = [_characters(one) for one in raw]
    places = [np.stack([one[:-1], one[1:]], axis=1) for one in ends]
    return _flat(((one.astype(np.int32) + first_id).tolist() for one in raw), places)


def _characters(raw: NDArray[np.uint8]) -> Ints:
    """(bytes + 1,) characters that end before each byte of a text, and all of them."""
    # A byte is the last of its character where the next one is no continuation (10xxxxxx).
    is_last = np.append((raw[1:] & 0xC0) != 0x80, [True])[: len(raw)]
    return np.concatenate([[0], np.cumsum(is_last)])


def _flat(ids: Iterable[Sequence[int]], places: Sequence[Ints]) -> Placed:
    sizes = np.fromiter(map(len, places), np.int64, len(places))
    flat = np.fromiter(chain.from_iterable(ids), np.int32, int(sizes.sum()))
    return flat, sizes, np.concatenate(places) if places else np.empty((0, 2), np.int64)
