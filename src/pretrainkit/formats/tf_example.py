"""`tf.train.Example`: named lists of numbers or byte strings.

Example { features = 1 }, Features { map<string, Feature> feature = 1 }, Feature { bytes_list = 1 | float_list = 2 |
int64_list = 3 }, each { repeated value = 1 }. Source: tensorflow/core/example/{example,feature}.proto.
"""

import numpy as np
from numpy.typing import NDArray

from pretrainkit.formats.protobuf import BYTES, FIXED32, VARINT, Buffer, fields, packed_int64, signed

Feature = NDArray[np.int64] | NDArray[np.float32] | list[bytes]
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3


def parse_example(record: Buffer) -> dict[str, Feature]:
    """The features of a serialized Example; one of no kind is an empty list.

    Raises:
        ValueError: It is none, or is cut off.
    """
    found: dict[str, Feature] = {}
    for number, _, features in fields(record):
        if number != 1 or isinstance(features, int):
            continue
        for number_2, _, entry in fields(features):
            if number_2 != 1 or isinstance(entry, int):
                continue
            name, feature = "", memoryview(b"")
            for number_3, _, value in fields(entry):
                if isinstance(value, int):
                    continue
                if number_3 == 1:
                    name = str(value, "utf-8")
                else:
                    feature = value
            found[name] = _feature(feature)
    return found


def _feature(data: Buffer) -> Feature:
    for number, _, content in fields(data):
        if isinstance(content, int):
            continue
        if number == _BYTES_LIST:
            return [bytes(value) for _, kind, value in fields(content) if kind == BYTES and not isinstance(value, int)]
        if number == _INT64_LIST:
            return _int64s(content)
        if number == _FLOAT_LIST:
            return _floats(content)
    return []


def _int64s(data: Buffer) -> NDArray[np.int64]:
    parts = [
        np.array([signed(value)], np.int64) if isinstance(value, int) else packed_int64(value)
        for _, kind, value in fields(data)
        if kind in (BYTES, VARINT)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])


def _floats(data: Buffer) -> NDArray[np.float32]:
    parts = [
        np.array([value], "<u4").view("<f4") if isinstance(value, int) else np.frombuffer(value, "<f4")
        for _, kind, value in fields(data)
        if kind in (BYTES, FIXED32)
    ]
    return np.concatenate([np.empty(0, np.float32), *parts]).astype(np.float32)
