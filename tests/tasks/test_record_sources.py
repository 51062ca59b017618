"""TFRecord files and SeqIO's caches as sources; files are written from the formats' descriptions."""

import gzip
import json
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.errors import DataError
from pretrainkit.formats.tf_messages import parse_example
from pretrainkit.tasks.preprocessors import append_eos_after_trim
from pretrainkit.tasks.record_sources import RecordFeature, SeqioCache, TfRecords
from pretrainkit.tasks.row_files import open_rows
from pretrainkit.tasks.task import Feature, Task
from pretrainkit.tasks.vocabulary import ByteVocabulary


def varint(number):
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def field(number, raw):
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def feature(values, is_packed=True):
    if values and isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))
    if values and isinstance(values[0], float):
        raw = struct.pack(f"<{len(values)}f", *values)
        parts = b"".join(b"\x0d" + raw[place : place + 4] for place in range(0, len(raw), 4))
        return field(2, field(1, raw) if is_packed else parts)
    parts = b"".join(map(varint, values))
    return field(3, field(1, parts) if is_packed else b"".join(b"\x08" + varint(value) for value in values))


def example(values, is_packed=True):
    entries = (field(1, name.encode()) + field(2, feature(one, is_packed)) for name, one in values.items())
    return field(1, b"".join(field(1, entry) for entry in entries))


def crc(data):
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    register ^= 0xFFFFFFFF
    return struct.pack("<I", ((register >> 15 | register << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(raw):
    length = struct.pack("<Q", len(raw))
    return length + crc(length) + raw + crc(raw)


ROWS = [
    {"targets": [3 + row, 300, 70_000 + row], "targets_pretokenized": [f"Zeile {row} ä".encode()]} for row in range(7)
]


@pytest.fixture
def cache(tmp_path):
    folder = tmp_path / "task"
    folder.mkdir()
    for shard in range(3):
        rows = ROWS[shard::3]
        (folder / f"train.tfrecord-{shard:05d}-of-00003").write_bytes(b"".join(record(example(row)) for row in rows))
    features = {
        "targets": {"shape": [None], "dtype": "int32"},
        "targets_pretokenized": {"shape": [], "dtype": "string"},
    }
    info = {"num_shards": 3, "features": features, "seqio_version": "0.0.20"}
    (folder / "info.train.json").write_text(json.dumps(info))
    (folder / "stats.train.json").write_text(json.dumps({"examples": 7, "targets_tokens": 21, "targets_max_tokens": 3}))
    (folder / "COMPLETED").touch()
    return folder


def texts(source):
    return [source.example("train", index)["targets_pretokenized"] for index in range(source.num_examples("train"))]


def test_a_cache_of_seqio_gives_its_examples_by_index(cache):
    source = SeqioCache(cache)
    assert source.splits == ("train",)
    assert source.file_sizes("train") == (3, 2, 2)
    found = source.example("train", 3)
    assert found["targets"].dtype == np.int32
    assert found["targets"].tolist() == [4, 300, 70_001]
    assert texts(source) == [f"Zeile {row} ä" for row in (0, 3, 6, 1, 4, 2, 5)]
    assert source.stats("train")["targets_tokens"] == 21
    again = pickle.loads(pickle.dumps(source))
    assert texts(again) == texts(source)
    assert again.fingerprint("train") == source.fingerprint("train")


def test_a_task_trains_on_tokens_of_seqio(cache):
    features = {"targets": Feature(ByteVocabulary())}
    task = Task("old", SeqioCache(cache), features, preprocessors=[append_eos_after_trim])
    bound = task.bind("train", {"targets": 3})
    assert bound.example(0)["targets"].tolist() == [3, 300, 1]


def test_the_fingerprint_is_that_of_the_content(cache):
    before = SeqioCache(cache).fingerprint("train")
    path = cache / "train.tfrecord-00002-of-00003"
    path.write_bytes(b"".join(record(example(row)) for row in [ROWS[2], ROWS[6]]))
    assert SeqioCache(cache).fingerprint("train") != before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("COMPLETED", "no file COMPLETED"),
        ("train.tfrecord-00001-of-00003", "lacks 1 of 3 files"),
        ("info.train.json", "no split 'train'"),
        ("stats", "but 8 in its stats.train.json"),
        ("cut", "ends within the record"),
        ("flipped", "has a wrong checksum"),
    ],
)
def test_a_cache_that_is_not_whole_is_refused(cache, damage, message):
    path = cache / "train.tfrecord-00001-of-00003"
    content = bytearray(path.read_bytes())
    if damage == "stats":
        (cache / "stats.train.json").write_text('{"examples": 8}')
    elif damage == "cut":
        path.write_bytes(content[:-1])
    elif damage == "flipped":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        (cache / damage).unlink()
    with pytest.raises(DataError, match=message):
        SeqioCache(cache).num_examples("train")


def test_records_of_other_makers_by_types_and_shapes(tmp_path):
    values = {"box": [1.0, 2.0, 3.0, 4.0], "label": [7], "names": [b"a", b"\xff"], "empty": []}
    path = tmp_path / "data.tfrecord.gz"
    path.write_bytes(gzip.compress(record(example(values)) * 2))
    plain = TfRecords({"train": path}).example("train", 1)
    assert plain["label"].tolist() == [7]
    assert plain["names"] == [b"a", b"\xff"]
    shapes = {
        "box": RecordFeature("float32", (None, 2)),
        "label": RecordFeature("int8", ()),
        "names": RecordFeature("bytes", (None,)),
        "empty": RecordFeature(),
        "absent": RecordFeature(),
    }
    found = TfRecords({"train": path}, shapes).example("train", 0)
    assert found["box"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert found["label"] == 7
    assert found["names"] == [b"a", b"\xff"]
    assert found["empty"].tolist() == []
    assert "absent" not in found


@pytest.mark.parametrize(
    "wrong", [RecordFeature("int32", ()), RecordFeature("string"), RecordFeature("float32", (None, 3))]
)
def test_a_feature_that_does_not_fit_is_named_with_its_record(tmp_path, wrong):
    (tmp_path / "data.tfrecord").write_bytes(record(example({"box": [1.0, 2.0]})))
    with pytest.raises(DataError, match=r"record 1 of .*data\.tfrecord: feature 'box' does not fit"):
        TfRecords({"train": tmp_path / "data.tfrecord"}, {"box": wrong}).example("train", 0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.floats(width=32, allow_nan=False)),
    st.lists(st.binary(max_size=5)),
    st.booleans(),
)
def test_every_example_comes_out_as_it_went_in(integers, floats, raw, is_packed):
    found = parse_example(memoryview(example({"i": integers, "f": floats, "b": raw}, is_packed)))
    assert list(found["i"]) == integers
    assert list(found["f"]) == floats
    assert list(found["b"]) == raw


def test_records_of_texts_are_rows(tmp_path):
    told = [{"question": [f"né {n}".encode()], "answer": [b"a", b"b"], "n": [n], "raw": [b"\xff"]} for n in range(3)]
    for shard, rows in enumerate((told[:2], told[2:])):
        path = tmp_path / f"rows.tfrecord-{shard:05d}-of-00002"
        path.write_bytes(b"".join(record(example(row)) for row in rows))
    for pattern, num in ((tmp_path / "rows.tfrecord*", 3), (tmp_path / "rows.tfrecord-00001-of-00002", 1)):
        source = open_rows(pattern, "rows")
        assert source.num_examples("rows") == num
        found = source.example("rows", num - 1)
        assert (found["question"], found["answer"], found["raw"]) == ("né 2", ["a", "b"], [b"\xff"])
        assert found["n"].tolist() == [2]
