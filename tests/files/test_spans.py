"""Spans of large files: together they are the whole file, whatever is in it; one corpus on any number of workers."""

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.corpus import shards, words
from pretrainkit.corpus.readers import read_documents
from pretrainkit.corpus.shards import BuildSettings, build_corpus
from pretrainkit.corpus.words import count_words
from pretrainkit.errors import DataError
from pretrainkit.files.skips import Skips
from pretrainkit.files.sources import SourceFile, find_sources, plain_chunks
from pretrainkit.files.spans import cut_large, group_sources

VALUES = st.one_of(
    st.builds(lambda text, extra: {"text": text, "meta": extra}, st.text(max_size=30), st.sampled_from([{}, {"a": 1}])),
    st.sampled_from([[1, {"b": 2}], {"no": "text"}, "text", {"text": "x", "parts": [{"text": "inside"}, {"c": []}]}]),
)
INDENTS = st.sampled_from([None, None, None, 0, 1])


@settings(max_examples=150)
@given(
    values=st.lists(st.tuples(VALUES, INDENTS), max_size=40), span=st.integers(20, 400), end=st.sampled_from(["", "\n"])
)
def test_stretches_hold_the_documents_of_the_file_in_order(tmp_path_factory, values, span, end):
    path = tmp_path_factory.mktemp("spans") / "x.jsonl"
    path.write_text("\n".join(json.dumps(value, indent=indent) for value, indent in values) + end)
    (whole,) = find_sources([path])
    parts = cut_large(whole, span)
    assert b"".join(chunk for part in parts for chunk in plain_chunks(part)) == path.read_bytes()
    documents = [document for part in parts for document in read_documents([part], Skips())]
    expected = list(read_documents([whole], Skips()))
    assert [(found.text, found.meta) for found in documents] == [(wanted.text, wanted.meta) for wanted in expected]
    positions = [document.position for document in documents]
    assert all(first < second for first, second in pairwise(positions))


def lines(path, num=400):
    rng = random.Random(3)
    path.write_text("".join(json.dumps({"text": f"{n} " * rng.randint(1, 40)}) + "\n" for n in range(num)))
    return path


def test_files_of_one_object_per_line_are_cut_evenly(tmp_path):
    (source,) = find_sources([lines(tmp_path / "x.jsonl")])
    parts = cut_large(source, 2000)
    assert len(parts) == source.num_bytes // 2000
    assert max(part.num_bytes for part in parts) < 3000
    assert len({json.dumps(part.identity) for part in parts}) == len(parts)


def test_text_that_cannot_be_cut_stays_whole(tmp_path):
    (tmp_path / "indented.jsonl").write_text(
        "\n".join(json.dumps({"text": "a", "m": {"b": 1}}, indent=1) for _ in range(99))
    )
    (tmp_path / "text.txt").write_text("A sentence.\n" * 99)
    (tmp_path / "one-line.jsonl").write_text('{"text": "a"}' * 99)
    for source in find_sources([tmp_path]):
        assert cut_large(source, 100) == [source]
    (remote,) = find_sources([f"file://{lines(tmp_path / 'x.jsonl')}"])
    assert cut_large(remote, 100) == [remote]


def test_small_files_are_not_opened():
    source = SourceFile("not there.jsonl", "jsonl", 199)
    assert cut_large(source, 100) == [source]


def test_ten_terabytes_are_a_limited_number_of_groups():
    """Each shard is merged from the runs of all groups, and a process can map only 65,530 files."""
    files = [SourceFile(f"{number}.jsonl.zst", "jsonl", 10**9) for number in range(10_000)]
    assert [len(group) for group in group_sources(files)] == [5] * 2000
    assert len(group_sources(files[:100])) == 100


@pytest.fixture
def small_spans(monkeypatch):
    for module in (shards, words):
        monkeypatch.setattr(module, "group_sources", lambda sources, size=1: group_sources(sources, 1, 2000))


def test_one_large_file_gives_one_corpus_and_one_table_on_any_number_of_workers(tmp_path, small_spans):
    sources = find_sources([lines(tmp_path / "x.jsonl")])
    outputs = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        build_corpus(sources, out / "c", BuildSettings(num_shards=3, heldout=0.1), workers=workers)
        count_words(sources, out / "words.tsv", workers=workers)
        files = [path for path in sorted(out.rglob("*")) if path.is_file()]
        outputs.append({path.relative_to(out).as_posix(): path.read_bytes() for path in files})
    assert outputs[0] == outputs[1]
    found = [
        document.text for document in read_documents(find_sources([tmp_path / "1/c/train", tmp_path / "1/c/valid"]))
    ]
    assert sorted(found) == sorted(document.text for document in read_documents(sources))


def test_the_order_of_the_input_is_kept_over_stretches(tmp_path, small_spans):
    sources = find_sources([lines(tmp_path / "x.jsonl")])
    build_corpus(sources, tmp_path / "out", BuildSettings(num_shards=2, seed=None, split_folders=False))
    found = [document.text for document in read_documents(find_sources([tmp_path / "out"]))]
    assert found == [document.text for document in read_documents(sources)]


def test_a_bad_line_is_named_from_where_its_stretch_begins(tmp_path, small_spans):
    path = lines(tmp_path / "x.jsonl")
    path.write_text(path.read_text() + "broken\n")
    with pytest.raises(DataError, match=r"x.jsonl, line \d+ after byte \d+: invalid json"):
        build_corpus(find_sources([path]), tmp_path / "out", BuildSettings(), workers=1)


@given(sizes=st.lists(st.integers(0, 30), max_size=30))
def test_groups_hold_every_file_once_in_order(sizes):
    sources = [SourceFile(str(index), "text", size) for index, size in enumerate(sizes)]
    groups = group_sources(sources, 50)
    assert [entry for group in groups for entry in group] == list(enumerate(sources))
    assert all(sum(source.num_bytes for _, source in group[:-1]) < 50 for group in groups)
