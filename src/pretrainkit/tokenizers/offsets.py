"""Character offsets of tokens in their texts.

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
"""(M,) int32 ids of all texts, concatenated; (N,) int64 number of ids of each text; (M, 2) int64 start and end of each
token in its text, in characters. A token may cover no character (one byte of several, or an added space): its start is
then its end."""


def huggingface_offsets(model: Any, texts: Sequence[str]) -> Placed:
    """Encode with a tokenizer of the `tokenizers` library. Control tokens are not added."""
    encodings = model.encode_batch(list(texts), add_special_tokens=False)
    places = [np.array(encoding.offsets, np.int64).reshape(-1, 2) for encoding in encodings]
    return _flat((encoding.ids for encoding in encodings), places)


def sentencepiece_offsets(model: Any, texts: Sequence[str]) -> Placed:
    """Encode with a `SentencePieceProcessor`, whose offsets are bytes."""
    ids, places = [], []
    for text, encoding in zip(texts, model.encode(list(texts), return_type="proto"), strict=True):
        pieces = encoding.pieces
        ids.append([piece.id for piece in pieces])
        bytes_M2 = np.array([(piece.begin, piece.end) for piece in pieces], np.int64).reshape(-1, 2)
        places.append(_characters(np.frombuffer(text.encode(), np.uint8))[bytes_M2])
    return _flat(ids, places)


def byte_offsets(texts: Sequence[str], first_id: int) -> Placed:
    """Encode texts as UTF-8 bytes: byte b has id `first_id` + b. The last byte of a character covers the character."""
    raw = [np.frombuffer(text.encode(), np.uint8) for text in texts]
    num_ended = [_characters(utf8) for utf8 in raw]
    places = [np.stack([ends[:-1], ends[1:]], axis=1) for ends in num_ended]
    return _flat(((utf8.astype(np.int32) + first_id).tolist() for utf8 in raw), places)


def _characters(raw: NDArray[np.uint8]) -> Ints:
    """Return (bytes + 1,): the number of characters that end before each byte of a text, and the total."""
    # A byte is the last of its character if the next byte is not a continuation byte (10xxxxxx).
    is_last = np.append((raw[1:] & 0xC0) != 0x80, [True])[: len(raw)]
    return np.concatenate([[0], np.cumsum(is_last)])


def _flat(ids: Iterable[Sequence[int]], places: Sequence[Ints]) -> Placed:
    sizes = np.fromiter(map(len, places), np.int64, len(places))
    flat = np.fromiter(chain.from_iterable(ids), np.int32, int(sizes.sum()))
    return flat, sizes, np.concatenate(places) if places else np.empty((0, 2), np.int64)
