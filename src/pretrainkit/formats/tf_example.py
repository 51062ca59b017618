"""`tf.train.Example`: named lists of numbers or byte strings."""

import numpy as np
from numpy.typing import NDArray

from pretrainkit.formats.tf_messages import parse

Feature = NDArray[np.int64] | NDArray[np.float32] | list[bytes]


def parse_example(record: bytes | memoryview) -> dict[str, Feature]:
    """The features of a serialized Example; one of no kind is an empty list. Raises ValueError where it is none, or
    is cut off."""
    found: dict[str, Feature] = {}
    for entry in parse("Example", record).features.feature:
        kinds = entry.value
        if kinds.HasField("int64_list"):
            found[entry.key] = np.array(kinds.int64_list.value, np.int64)
        elif kinds.HasField("float_list"):
            found[entry.key] = np.array(kinds.float_list.value, np.float32)
        else:
            found[entry.key] = list(kinds.bytes_list.value)
    return found
