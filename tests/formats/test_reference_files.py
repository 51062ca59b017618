"""Files that TensorFlow, TensorStore, Flax and Orbax wrote (`references/make_references.py`) hold what went in."""

import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard

from pretrainkit.errors import CheckpointError, MissingPackageError
from pretrainkit.formats.crc32c import crc32c, masked
from pretrainkit.formats.flax_file import read_flax
from pretrainkit.formats.t5x_checkpoint import open_t5x
from pretrainkit.formats.tf_checkpoint import TensorFlowCheckpoint
from pretrainkit.formats.tf_messages import parse_example
from pretrainkit.formats.tfrecord import record_places

REFERENCES = Path(__file__).parent / "references"


def as_bfloat16(values):
    """Rounded to the nearest even, as float32."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def framed(record):
    """A record as it is stored in a file."""
    length = struct.pack("<Q", len(record))
    length_crc, crc = (struct.pack("<I", masked(crc32c(part))) for part in (length, record))
    return length + length_crc + record + crc


def arrays():
    rng = np.random.default_rng(7)
    return {
        "shared/embedding": rng.normal(size=(6, 4)).astype(np.float32),
        "encoder/half": as_bfloat16(rng.normal(size=(3, 5))),
        "encoder/quarter": rng.normal(size=(4,)).astype(np.float16),
        "global_step": np.array(1234, np.int64),
        "many": np.arange(200, dtype=np.int32),
        "yes": np.array([True, False, True]),
        "parts": np.arange(24, dtype=np.float32).reshape(6, 4),
    }


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", ["", "model.ckpt-1234"])
def test_a_checkpoint_of_tensorflow(version, name):
    found = TensorFlowCheckpoint(REFERENCES / "tensorflow" / f"v{version}" / name)
    expected = arrays()
    if version == 1:  # it was not written there
        del expected["encoder/half"]
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


@pytest.mark.parametrize("file", ["model.ckpt-1234.index", "model.ckpt-1234.data-00000-of-00001"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_checkpoint_of_tensorflow_is_refused(tmp_path, file, damage):
    shutil.copytree(REFERENCES / "tensorflow" / "v2", tmp_path / "v2")
    path = tmp_path / "v2" / file
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
    with pytest.raises(CheckpointError, match="copy all of its files again"):
        dict(TensorFlowCheckpoint(tmp_path / "v2" / "model.ckpt-1234").items())


@pytest.mark.parametrize(
    "place", ["t5x", "t5x/checkpoint_77", "t5x/checkpoint_77/checkpoint", "orbax/ocdbt", "orbax/zarr"]
)
def test_a_checkpoint_of_t5x_and_of_orbax(place):
    found = open_t5x(REFERENCES / place)
    expected = {
        "target/encoder/kernel": arrays()["shared/embedding"],
        "target/encoder/half": arrays()["encoder/half"],
        "state/step": np.array(77, np.int32),
        "state/param_states/kernel/v": np.ones(3, np.float32),
    }
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("way", ["cut", "flipped"])
def test_a_damaged_store_of_orbax_is_refused(tmp_path, share, way):
    shutil.copytree(REFERENCES / "orbax" / "ocdbt", tmp_path / "ocdbt")
    for path in (tmp_path / "ocdbt").rglob("*"):
        if path.is_file():
            content = bytearray(path.read_bytes())
            place = int(share * len(content))
            content[place] ^= 255
            path.write_bytes(content[:place] if way == "cut" else content)
    with pytest.raises(CheckpointError):
        dict(open_t5x(tmp_path / "ocdbt").items())


def test_records_of_tensorflow():
    raw = (REFERENCES / "examples.tfrecord").read_bytes()
    begins, ends = record_places([raw])
    records = [raw[begin:end] for begin, end in zip(begins, ends, strict=True)]
    assert records[1:] == [b"", b"x" * 1000]
    assert b"".join(map(framed, records)) == raw
    example = parse_example(memoryview(records[0]))
    assert example["inputs"].tolist() == [3, 700, 70_000, 1]
    assert example["text"] == ["Grüße".encode(), b""]
    assert example["weights"].tolist() == [0.5, -2.0]
    assert example["negative"].tolist() == [-1, 2**62]
    assert example["nothing"] == []


def test_an_array_in_chunks_is_put_together(tmp_path):
    # {"__msgpack_chunked_array__": true, "shape": {"0": 2, "1": 2}, "chunks": {"0": [3 numbers], "1": [1 number]}}
    def array(numbers):
        inner = b"\x93\x91" + bytes([len(numbers)]) + b"\xa5uint8\xc4" + bytes([len(numbers)]) + bytes(numbers)
        return b"\xc7" + bytes([len(inner), 1]) + inner

    chunks = b"\x82\xa10" + array([1, 2, 3]) + b"\xa11" + array([4])
    raw = b"\x83\xb9__msgpack_chunked_array__\xc3\xa5shape\x82\xa10\x02\xa11\x02\xa6chunks" + chunks
    (tmp_path / "file").write_bytes(raw)
    np.testing.assert_array_equal(read_flax(tmp_path / "file"), [[1, 2], [3, 4]])


@pytest.mark.parametrize(("place", "is_inside"), [("e/", True), ("../", False), ("/tmp/", False)])
def test_a_store_of_orbax_cannot_name_files_outside_of_its_folder(tmp_path, place, is_inside):
    store = tmp_path / "ocdbt"
    shutil.copytree(REFERENCES / "orbax" / "ocdbt", store)
    (node,) = (store / "d").iterdir()
    before, after = (name.encode() for name in (f"d/{node.name}", place.replace("/tmp/", f"{tmp_path}/x/")))
    raw = (store / "manifest.ocdbt").read_bytes()
    # Magic number and length, version 0, compression 1 (zstd), the content, a CRC.
    assert raw[12:14] == b"\x00\x01"
    said = zstandard.ZstdDecompressor().decompressobj().decompress(raw[14:-4])
    named = after + b"a" * (len(before) - len(after))
    said = said.replace(bytes([len(before), 0]) + before, bytes([len(named), 0]) + named)
    raw = raw[:4] + struct.pack("<Q", 14 + len(said) + 4) + b"\x00\x00" + said
    (store / "manifest.ocdbt").write_bytes(raw + struct.pack("<I", crc32c(raw)))
    target = store / named.decode()
    target.resolve().parent.mkdir(exist_ok=True)
    shutil.move(node, target.resolve())
    if is_inside:
        assert "target/encoder/kernel" in open_t5x(store)
    else:
        with pytest.raises(CheckpointError, match="Invalid key"):
            open_t5x(store)


def test_without_tensorstore_the_install_command_is_printed(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'pretrainkit\[t5x\]'"):
        open_t5x(REFERENCES / "orbax" / "ocdbt")
    found = open_t5x(REFERENCES / "t5x")
    assert found["state/step"] == 77  # which is not in zarr
    with pytest.raises(MissingPackageError, match=r"pip install 'pretrainkit\[t5x\]'"):
        found["target/encoder/kernel"]
