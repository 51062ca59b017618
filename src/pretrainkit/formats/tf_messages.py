"""TensorFlow's messages (protocol buffers) with the fields that we read, and conversions of arrays in them.

Sources, in tensorflow/core: framework/{tensor,tensor_shape,tensor_slice,types}.proto, example/{example,feature}.proto,
protobuf/{tensor_bundle,saved_tensor_slice}.proto.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Dim": {"size": (1, "int64")},
    "Shape": {"dim": (2, "Dim*")},
    "Extent": {"start": (1, "int64"), "length": (2, "int64")},
    "Slice": {"extent": (1, "Extent*")},
    "Tensor": {
        "tensor_content": (4, "bytes"),
        "float_val": (5, "float*"),
        "double_val": (6, "double*"),
        "int_val": (7, "int32*"),
        "int64_val": (10, "int64*"),
        "bool_val": (11, "bool*"),
        "half_val": (13, "int32*"),
    },
    "BundleHeader": {"num_shards": (1, "int32"), "endianness": (2, "int32")},
    "BundleEntry": {
        "dtype": (1, "int32"),
        "shape": (2, "Shape"),
        "shard_id": (3, "int32"),
        "offset": (4, "int64"),
        "size": (5, "int64"),
        "crc32c": (6, "fixed32"),
        "slices": (7, "Slice*"),
    },
    "SavedSliceMeta": {"name": (1, "string"), "shape": (2, "Shape"), "type": (3, "int32")},
    "SavedTensorSliceMeta": {"tensor": (1, "SavedSliceMeta*")},
    "SavedSlice": {"name": (1, "string"), "slice": (2, "Slice"), "data": (3, "Tensor")},
    "SavedTensorSlices": {"meta": (1, "SavedTensorSliceMeta"), "data": (2, "SavedSlice")},
    "BytesList": {"value": (1, "bytes*")},
    "FloatList": {"value": (1, "float*")},
    "Int64List": {"value": (1, "int64*")},
    "Feature": {"bytes_list": (1, "BytesList"), "float_list": (2, "FloatList"), "int64_list": (3, "Int64List")},
    "Entry": {"key": (1, "string"), "value": (2, "Feature")},
    "Features": {"feature": (1, "Entry*")},
    "Example": {"features": (1, "Features")},  # named lists of numbers or byte strings
}
"""Fields by message: number and type; * means `repeated`."""


def parse(message: str, data: bytes | memoryview) -> Any:
    """Parse a message by its name into an object of `google.protobuf`. Raises ValueError if it is not such a message,
    or is truncated."""
    from google.protobuf.message import DecodeError

    parsed = _classes()[message]()
    try:
        parsed.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"it is not a TensorFlow message {message}, or is truncated: {error}") from None
    return parsed


@cache
def _classes() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    # We need proto2, in which an absent field differs from 0: an extent without a length is the whole dimension.
    file = descriptor_pb2.FileDescriptorProto(name="pretrainkit.proto", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.removesuffix("*")
            field = described.field.add(name=name, number=number, label=label)
            if kind in _MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    # A separate pool, because TensorFlow, if it is also imported, has messages with these names.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in _MESSAGES}


Feature = NDArray[np.int64] | NDArray[np.float32] | list[bytes]


def parse_example(record: bytes | memoryview) -> dict[str, Feature]:
    """Return the features of a serialized Example. A feature without a kind is an empty list. Raises ValueError if the
    record is not an Example, or is truncated."""
    features: dict[str, Feature] = {}
    for entry in parse("Example", record).features.feature:
        kinds = entry.value
        if kinds.HasField("int64_list"):
            features[entry.key] = np.array(kinds.int64_list.value, np.int64)
        elif kinds.HasField("float_list"):
            features[entry.key] = np.array(kinds.float_list.value, np.float32)
        else:
            features[entry.key] = list(kinds.bytes_list.value)
    return features


BFLOAT16 = "bfloat16"
DTYPES: dict[int, str] = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "|u1", 5: "<i2", 6: "|i1", 9: "<i8", 10: "|b1", 14: BFLOAT16, 17: "<u2", 19: "<f2",
    22: "<u4", 23: "<u8",
}  # fmt: skip
"""Code of a DataType to NumPy's name."""
_STRING = 7


def numpy_dtype(code: int) -> str:
    """Return NumPy's name of a DataType. Raises ValueError if it is not numeric."""
    if code not in DTYPES:
        raise ValueError(f"it contains {'strings' if code == _STRING else f'type {code}'}, not numbers")
    return DTYPES[code]


def array_of(content: bytes | memoryview, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return raw little-endian elements as an array; bfloat16 becomes float32 without loss. Raises ValueError if their
    number does not match the shape."""
    if dtype == BFLOAT16:
        return from_bfloat16(np.frombuffer(content, "<u2")).reshape(shape)
    return np.frombuffer(content, np.dtype(dtype)).reshape(shape)


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the float32 values whose upper halves are `bits`."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def as_index(part: Any) -> tuple[slice, ...]:
    """Return a message Slice as an index for NumPy. An extent without a length is the whole dimension."""
    return tuple(
        slice(extent.start, extent.start + extent.length if extent.HasField("length") else None)
        for extent in part.extent
    )
