import json
from datetime import date, datetime
from decimal import Decimal

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.corpus.readers import json_values, read_documents, text_hash
from pretrainkit.corpus.shard_writer import encode_record
from pretrainkit.errors import DataError
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import SourceFile, find_sources

texts = st.text(max_size=40)


def read(path, raw, skips=None, format="auto", **options):
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    return list(read_documents(find_sources([path], format), skips, **options))


def test_txt_zst_is_read_as_jsonl(tmp_path):
    """Acceptance fact 1."""
    packed = zstandard.ZstdCompressor().compress(b'{"text": "a"}\n')
    assert [d.text for d in read(tmp_path / "x.txt.zst", packed)] == ["a"]


def test_values_without_a_text_are_skipped_without_error_and_counted(tmp_path):
    """Acceptance fact 2."""
    skips = Skips()
    raw = '[1]\n"x"\n3\nnull\n{}\n{"text": 5}\n{"text": null}\n{"text": "a", "other": 1}{"text": "b"}\n'
    documents = read(tmp_path / "x.jsonl", raw, skips)
    assert [(d.text, d.position) for d in documents] == [("a", 0), ("b", 1)]
    assert skips.counts == {"not_an_object": 4, "no_text": 3}
    assert skips.num_bad == 0
    assert len(skips.warnings) == 2
    assert "line 1" in skips.warnings[0]


def test_values_may_share_lines_and_span_lines(tmp_path):
    raw = '\n  {"text": "a"} {"text": "b"}\r\n\n{\n "text":\n "c"\n}\n {"text": "d"}'
    assert [d.text for d in read(tmp_path / "x.jsonl", raw)] == ["a", "b", "c", "d"]


@given(
    documents=st.lists(texts, max_size=8),
    indent=st.sampled_from([None, 1]),
    separator=st.sampled_from(["\n", " ", "\n\n", "\r\n"]),
)
def test_any_stream_of_values_is_read_whole(documents, indent, separator):
    """The spec's lenient form: the line feed does not separate values."""
    stream = separator.join(json.dumps({"text": text}, indent=indent) for text in documents).encode()
    skips = Skips()
    values = json_values(iter(stream.split(b"\n")), "x", skips)
    assert [value["text"] for value, _ in values] == documents
    assert not skips.counts


broken_lines = st.sampled_from([
    '{"text": "a', '{"text": "a"', '{"text":', "{", "[", "nonsense", '{"text": "\\ud800"}', '{"text": tru',
    "[" * 5000, "1" * 5000,
])  # fmt: skip


@given(lines=st.lists(st.one_of(texts.map(lambda text: json.dumps({"text": text})), broken_lines), max_size=8))
def test_a_broken_line_loses_nothing_but_itself(lines):
    """Defect 1: the original drops the rest of the file."""
    skips = Skips(max_bad=100)
    values = json_values((line.encode() for line in lines), "x", skips)
    read_texts = [value["text"] for value, _ in values if isinstance(value, dict) and "text" in value]
    good = [
        line for line in lines if line.startswith('{"text": ') and line.endswith('"}') and line != '{"text": "\\ud800"}'
    ]
    assert read_texts == [json.loads(line)["text"] for line in good]
    assert skips.num_bad == len(lines) - len(good)


def test_a_broken_line_is_an_error_that_names_file_line_and_remedy(tmp_path):
    path = tmp_path / "x.jsonl"
    with pytest.raises(DataError) as caught:
        read(path, '{"text": "a"}\n{"text": "b"\n{"text": "c"}\n')
    message = str(caught.value)
    assert f"{path}, line 2: invalid json" in message
    assert "--max-bad" in message


def test_within_the_budget_bad_lines_are_counted_and_warned_about_once(tmp_path):
    skips = Skips(max_bad=2)
    raw = b'{"text": "a"}\noops\n{"text": "\xff"}\n{"text": "b"}\n'
    assert [d.text for d in read(tmp_path / "x.jsonl", raw, skips)] == ["a", "b"]
    assert skips.counts == {"invalid_json": 1, "invalid_utf8": 1}
    assert [warning.partition("skipped, ")[2].partition(":")[0] for warning in skips.warnings] == [
        "invalid json",
        "invalid utf8",
    ]
    with pytest.raises(DataError, match="2 bad records were allowed"):
        read(tmp_path / "y.jsonl", b"x\ny\nz\n", Skips(max_bad=2))


def test_bert_text_documents_end_at_blank_lines_and_keep_blanks(tmp_path):
    raw = "\n  One. \nTwo.\r\n \u3000\n\n\nThree.\x0b"
    documents = read(tmp_path / "x.txt", raw)
    assert [d.text for d in documents] == ["  One. \nTwo.\r\n", "Three.\x0b\n"]
    assert all(d.has_sentence_lines for d in documents)


def test_invalid_utf8_in_text_names_the_line(tmp_path):
    with pytest.raises(DataError, match="line 2: invalid utf8"):
        read(tmp_path / "x.txt", b"fine\nnot \xe9 fine\n")
    assert [d.text for d in read(tmp_path / "x.txt", b"fine\nnot \xe9 fine\nend", Skips(1))] == ["fine\nend\n"]
    with pytest.raises(DataError, match="line 3: invalid utf8") as caught:
        read(tmp_path / "b.txt", b"a\nb\nc \xe9", format="book")
    assert "byte 2" in str(caught.value)


def test_parquet_reads_text_and_meta(tmp_path):
    path = tmp_path / "x.parquet"
    rows = {"text": ["a", None, "c"], "meta": [{"k": 1}, {"k": 2}, None], "body": ["x", "y", "z"]}
    pyarrow.parquet.write_table(pyarrow.table(rows), path)
    skips = Skips()
    documents = list(read_documents(find_sources([path]), skips))
    assert [(d.text, d.meta) for d in documents] == [("a", {"k": 1}), ("c", {})]
    assert skips.counts == {"no_text": 1}
    assert [d.text for d in read_documents(find_sources([path]), text_key="body")] == ["x", "y", "z"]
    with pytest.raises(DataError, match="columns are: text, meta, body"):
        list(read_documents(find_sources([path]), text_key="content"))
    path.write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match="damaged"):
        list(read_documents(find_sources([path])))


def test_values_that_json_lacks_are_text_in_the_meta(tmp_path):
    meta = {"at": datetime(2026, 1, 2, 3, 4, 5), "day": date(2026, 1, 2), "price": Decimal("1.20"), "raw": b"a\xff"}
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "meta": [meta]}), tmp_path / "x.parquet")
    (document,) = read_documents(find_sources([tmp_path / "x.parquet"]))
    assert document.meta == {"at": "2026-01-02T03:04:05", "day": "2026-01-02", "price": "1.20", "raw": "a\\xff"}


@settings(max_examples=25)
@given(text=texts, meta=st.dictionaries(texts, texts, max_size=3))
def test_records_come_back_as_they_were_written(tmp_path_factory, text, meta):
    path = tmp_path_factory.mktemp("records") / "x.jsonl"
    path.write_bytes(encode_record(text, meta))
    (document,) = read_documents([SourceFile(str(path), "jsonl", 0)])
    assert (document.text, document.meta) == (text, meta)


def test_records_are_compact_and_escape_only_what_they_must():
    """Section 4.3 of the spec."""
    record = encode_record('é"\\\n\r\t\b\f\x01\x7f/\u2028', {"dataset": "Books"})
    expected = '{"text":"é\\"\\\\\\n\\r\\t\\b\\f\\u0001\x7f/\u2028","meta":{"dataset":"Books"}}\n'
    assert record.decode() == expected


def test_a_meta_that_is_not_an_object_is_kept_but_ignored(tmp_path):
    (document,) = read(tmp_path / "x.jsonl", '{"text": "a", "meta": "Github"}')
    assert document.meta == {"meta": "Github"}


@given(a=texts, b=texts)
def test_text_hash_depends_on_the_text_alone(a, b):
    assert (text_hash(a) == text_hash(b)) == (a == b)
