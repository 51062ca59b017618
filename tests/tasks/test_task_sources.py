"""Sources of tasks: every format by index, sharding, fingerprints by content."""

import gzip
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrainkit.errors import DataError
from pretrainkit.tasks.sources import (
    FunctionSource,
    HuggingFaceDataset,
    JsonLines,
    Parquet,
    TextLines,
    TokenShardSource,
    Tsv,
)
from pretrainkit.tokenizers.shard_writer import write_shards
from pretrainkit.tokenizers.special import SpecialIds

LINES = ["one", "", "two  ", "drei äöü", "\ttab"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "cache"))


def everything(source, split="train"):
    return [source.example(split, index) for index in range(source.num_examples(split))]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "end"])
def test_every_line_is_an_example(tmp_path, end, last):
    (tmp_path / "a.txt").write_bytes((end.join(LINES) + (end + last if last else end)).encode())
    source = TextLines({"train": tmp_path / "a.txt"})
    assert [example["text"] for example in everything(source)] == LINES + ([last] if last else [])
    with pytest.raises(IndexError):
        source.example("train", 99)


@given(lines=st.lists(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"])), max_size=20))
def test_lines_are_those_that_were_written(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="")
    expected = [line.removeprefix("\ufeff") if number == 0 else line for number, line in enumerate(lines)]
    assert [example["text"] for example in everything(TextLines({"train": path}))] == expected


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_lines_of_utf_16_are_refused(tmp_path, pack):
    path = tmp_path / ("a.txt" if pack is bytes else "a.txt.gz")
    path.write_bytes(pack(("one\n" * 20).encode("utf-16-le")))
    with pytest.raises(DataError, match="iconv -f UTF-16LE"):
        everything(TextLines({"train": path}))


def test_header_lines_of_every_file_are_left_out(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"header\n{name}1\n{name}2\n")
    source = TextLines({"train": str(tmp_path / "*.txt")}, key="line", skip_header_lines=1)
    assert [example["line"] for example in everything(source)] == ["a1", "a2", "b1", "b2"]
    assert source.file_sizes("train") == (2, 2)


def test_large_files_keep_their_index_until_they_change(tmp_path, monkeypatch):
    monkeypatch.setattr("pretrainkit.data.line_index._WORTH_KEEPING_BYTES", 1)
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    first = TextLines({"train": path})
    assert first.num_examples("train") == 2
    monkeypatch.setattr("pretrainkit.data.line_index._scan", lambda chunks: pytest.fail("was indexed again"))
    again = TextLines({"train": path})
    assert again.example("train", 1) == {"text": "two"}
    assert again.fingerprint("train") == first.fingerprint("train")
    monkeypatch.undo()
    path.write_text("three\nfour\nfive\n")
    assert TextLines({"train": path}).num_examples("train") == 3
    assert TextLines({"train": path}).fingerprint("train") != first.fingerprint("train")


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.zst"])
def test_json_lines_compressed_or_not(tmp_path, suffix):
    import zstandard

    rows = [{"text": f"row {n}", "n": n} for n in range(5)]
    plain = "\n\n".join(json.dumps(row) for row in rows).encode()
    pack = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": zstandard.ZstdCompressor().compress}[suffix]
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(pack(plain))
    source = JsonLines({"train": path})
    assert everything(source) == rows
    assert everything(JsonLines({"train": path}, keys=["n"]))[4] == {"n": 4}
    copy = pickle.loads(pickle.dumps(source))
    assert copy.example("train", 3) == rows[3]
    with pytest.raises(DataError, match=r"line 1 of .* has no label\n  its keys are: text, n"):
        JsonLines({"train": path}, keys=["label"]).example("train", 0)


@pytest.mark.parametrize(("line", "message"), [("{", "line 2 .* is not JSON"), ("[1]", "line 2 .* is a JSON list")])
def test_a_broken_json_line_is_named(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' + line + "\n")
    with pytest.raises(DataError, match=message):
        JsonLines({"train": tmp_path / "a.jsonl"}).example("train", 1)


def test_tables_with_and_without_a_header(tmp_path):
    (tmp_path / "a.tsv").write_text('id\tsentence\tlabel\n0\t"quoted\t1\n\n1\tb\t0\n')
    assert everything(Tsv({"train": tmp_path / "a.tsv"})) == [
        {"id": "0", "sentence": '"quoted', "label": "1"},
        {"id": "1", "sentence": "b", "label": "0"},
    ]
    named = Tsv({"train": tmp_path / "a.tsv"}, columns=(None, "text", "y"), skip_header_lines=1)
    assert everything(named) == [{"text": '"quoted', "y": "1"}, {"text": "b", "y": "0"}]
    assert pickle.loads(pickle.dumps(named)).example("train", 1) == {"text": "b", "y": "0"}


def test_a_row_with_other_fields_is_refused_unless_allowed(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tb\n1\t2\n1\n1\t2\t3\n")
    source = Tsv({"train": tmp_path / "a.tsv"})
    with pytest.raises(DataError, match=r"line 3 of .* has 1 fields instead of 2"):
        source.example("train", 1)
    ragged = Tsv({"train": tmp_path / "a.tsv"}, may_be_ragged=True)
    assert everything(ragged) == [{"a": "1", "b": "2"}, {"a": "1"}, {"a": "1", "b": "2"}]


def test_parquet_rows_by_index(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number in range(2):
        table = pa.table({"n": [10 * number + row for row in range(5)], "text": [f"t{row}" for row in range(5)]})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=2)
    source = Parquet({"train": tmp_path / "*.parquet"})
    assert source.file_sizes("train") == (5, 5)
    assert [row["n"] for row in everything(source)] == [*range(5), *range(10, 15)]
    assert Parquet({"train": tmp_path / "*.parquet"}, columns=["text"]).example("train", 7) == {"text": "t2"}
    assert pickle.loads(pickle.dumps(source)).example("train", 9) == {"n": 14, "text": "t4"}
    with pytest.raises(DataError, match="no column x\n  its columns are: n, text"):
        Parquet({"train": tmp_path / "0.parquet"}, columns=["x"]).num_examples("train")


def test_a_saved_data_set_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = {"text": ["a", "b", "c"], "label": [0, 1, 0]}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows)}).save_to_disk(str(tmp_path / "saved"))
    source = HuggingFaceDataset(tmp_path / "saved", splits=("train", "validation"))
    assert source.num_examples("train") == 3
    assert source.example("train", 2) == {"text": "c", "label": 0}
    assert pickle.loads(pickle.dumps(source)).fingerprint("train") == source.fingerprint("train")
    with pytest.raises(DataError, match="split 'validation' cannot be read"):
        source.num_examples("validation")


def test_slices_of_a_saved_data_set_are_splits_of_their_own(tmp_path):
    datasets = pytest.importorskip("datasets")
    parts = {"train": datasets.Dataset.from_dict({"n": [0, 1, 2, 3]}), "test": datasets.Dataset.from_dict({"n": [9]})}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    splits = {"train": "train[1:]+test", "validation": "train[:25%]"}
    source = HuggingFaceDataset(tmp_path / "saved", splits=splits)
    assert [row["n"] for row in everything(source)] == [1, 2, 3, 9]
    assert [row["n"] for row in everything(source, "validation")] == [0]
    again = HuggingFaceDataset(tmp_path / "saved", splits=splits)
    assert [again.fingerprint(split) == source.fingerprint(split) for split in splits] == [True, True]
    assert source.fingerprint("train") != source.fingerprint("validation")


def test_a_saved_data_set_without_splits_is_not_held_out_from_itself(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"n": [0, 1, 2]}).save_to_disk(str(tmp_path / "saved"))
    source = HuggingFaceDataset(tmp_path / "saved")
    assert source.num_examples("train") == 3
    with pytest.raises(DataError, match="split 'validation' cannot be read"):
        source.num_examples("validation")


def test_documents_of_token_shards(tmp_path):
    special = SpecialIds(unk=2, cls=1, sep=1, mask=0, pad=0)
    write_shards(tmp_path, [[[[5, 6], [7]], [[8]]], [[[9, 10]]]], vocab_size=20, special=special)
    source = TokenShardSource({"train": tmp_path})
    assert [example["targets"].tolist() for example in everything(source)] == [[5, 6, 7], [8], [9, 10]]
    assert source.example("train", 0)["targets"].dtype == np.int32
    assert source.file_sizes("train") == (2, 1)


def test_a_function_gives_examples_and_its_code_its_fingerprint():
    source = FunctionSource(lambda split: ({"n": n} for n in range(3)), ["train"])
    assert everything(source) == [{"n": 0}, {"n": 1}, {"n": 2}]
    other = FunctionSource(lambda split: ({"n": n} for n in range(4)), ["train"])
    again = FunctionSource(lambda split: ({"n": n} for n in range(3)), ["train"])
    assert source.fingerprint("train") == again.fingerprint("train") != other.fingerprint("train")
    versions = [FunctionSource(len, ["train"], version=version).fingerprint("train") for version in ("1", "2")]
    assert versions[0] != versions[1]


def test_fingerprints_are_of_content_not_of_names(tmp_path):
    for name, text in (("a.txt", "one\n"), ("b.txt", "one\n"), ("c.txt", "two\n")):
        (tmp_path / name).write_text(text)
    a, b, c = (TextLines({"train": tmp_path / f"{name}.txt"}).fingerprint("train") for name in "abc")
    assert a == b != c
    assert TextLines({"train": tmp_path / "a.txt"}, key="line").fingerprint("train") != a


def _read_packed(path):
    return TextLines({"train": path}).example("train", 4999)["text"]


def test_processes_that_unpack_a_file_at_once_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("".join(f"line {n}\n" for n in range(5000)).encode()))
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(_read_packed, [path] * 8)) == {"line 4999"}
    assert len(list((tmp_path / "cache/tasks").iterdir())) == 3


def test_the_tables_of_glue_are_read_row_by_row(sample_data):
    columns = {"CoLA": (None, "label", None, "sentence"), "SST-2": None, "RTE": None, "WNLI": None}
    for name, names in columns.items():
        source = Tsv({"train": sample_data / "glue" / name / "train.tsv"}, columns=names)
        rows = [source.example("train", index) for index in range(0, source.num_examples("train"), 7)]
        assert len(rows) > 50
        assert all(row["label"] for row in rows)
