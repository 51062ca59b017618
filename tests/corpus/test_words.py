import json
import os
import resource
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.corpus import word_tables, words
from pretrainkit.corpus.readers import read_documents
from pretrainkit.corpus.word_tables import PythonTable, order_key
from pretrainkit.corpus.words import SABERTOOTH_PILE_SETS, count_words
from pretrainkit.errors import DataError, RunError
from pretrainkit.files.manifest import verify
from pretrainkit.files.sources import find_sources
from pretrainkit.workers.engine import LocalEngine, Resources

try:
    from pretrainkit.corpus._words import WordTable
except ImportError:
    WordTable = None

tables = [PythonTable, pytest.param(WordTable, marks=pytest.mark.skipif(WordTable is None, reason="not compiled"))]
alphabet = st.sampled_from(
    [b" ", b"\t", b"\n", b"\r", b"\v", b"\f", b"\x00", b"a", b"b", b"\xff", b"\xe3\x80\x80", b"abcdefgh"]
)
buffers = st.one_of(st.lists(alphabet, max_size=80).map(b"".join), st.binary(max_size=120))


def rows_of(table, order="bytes"):
    pieces = []
    table.dump(pieces.append, order)
    rows = [row.rpartition(b"\t") for row in b"".join(pieces).split(b"\n")[:-1]]
    return [(word, int(count)) for word, _, count in rows]


def naive(*pieces):
    """Byte by byte, from the definition."""
    counts, word = Counter(), b""
    for byte in b"\n".join(pieces) + b"\n":
        if byte in b" \t\n\r":
            if word:
                counts[word] += 1
            word = b""
        else:
            word += bytes([byte])
    return counts


@pytest.mark.parametrize("table_type", tables)
@given(pieces=st.lists(buffers, max_size=4))
def test_tables_count_runs_of_other_bytes(table_type, pieces):
    table = table_type()
    for piece in pieces:
        table.update(piece)
    assert rows_of(table) == sorted(naive(*pieces).items())
    assert len(table) == len(naive(*pieces))
    assert table.dump(len, "count") == naive(*pieces).total()


@pytest.mark.skipif(WordTable is None, reason="not compiled")
@given(pieces=st.lists(buffers, max_size=4), order=st.sampled_from(["count", "bytes", "sabertooth"]))
def test_the_compiled_table_gives_the_rows_of_the_python_one(pieces, order):
    compiled, plain = WordTable(), PythonTable()
    for table in (compiled, plain):
        for piece in pieces:
            table.update(piece)
        table.merge(b"abcdefghi\xff\t7\n")
    assert rows_of(compiled, order) == rows_of(plain, order)


@pytest.mark.parametrize("table_type", tables)
def test_tables_grow(table_type):
    table = table_type()
    for number in range(30_000):
        table.update(b"%d long-word-%d " % (number, number))
    table.update(b"7 " * 5)
    rows = dict(rows_of(table))
    assert len(rows) == 60_000
    assert rows[b"7"] == 6
    assert table.num_bytes > 1_000_000


@pytest.mark.parametrize("table_type", tables)
@given(rows=st.lists(st.tuples(st.binary(min_size=1, max_size=12), st.integers(1, 2**60)), max_size=8), junk=buffers)
def test_merge_takes_good_rows_and_stops_at_others(table_type, rows, junk):
    rows = [(word.translate(None, b"\t\n"), count) for word, count in rows]
    rows = [(word, count) for word, count in rows if word]
    good = b"".join(b"%b\t%d\n" % row for row in rows)
    table = table_type()
    assert table.merge(good + b"bad row\n" + junk) == len(good)
    expected = Counter()
    for word, count in rows:
        expected[word] += count
    assert rows_of(table) == sorted(expected.items())
    for bad in (
        b"a\tb\n",
        b"a\t\n",
        b"\t3\n",
        b"a\t3",
        b"a\t-1\n",
        b"a\t1\t2\n",
        b"a\t0\n",
        b"a\t18446744073709551616\n",
    ):
        assert table.merge(bad) == 0


@pytest.mark.parametrize("table_type", tables)
def test_counts_beyond_64_bits_are_refused(table_type):
    table = table_type()
    table.merge(b"a\t18446744073709551615\n")
    with pytest.raises(OverflowError):
        table.merge(b"a\t1\n")
    with pytest.raises(ValueError):
        table.dump(print, "alphabet")


@given(words=st.lists(st.binary(min_size=1, max_size=3), unique=True))
def test_sabertooth_order_is_low_nibble_first(words):
    """Section 5.1 of the spec."""
    by_definition = sorted(words, key=lambda word: [nibble for c in word for nibble in (c & 15, c >> 4)])
    assert sorted(words, key=lambda word: order_key("sabertooth")((word, 1))) == by_definition


def counted(sources, out, **options):
    count_words(sources, out, **options)
    rows = [row.rpartition("\t") for row in out.read_bytes().decode().split("\n")[:-1]]
    return {word: int(count) for word, _, count in rows}


def write(path, raw):
    path.write_bytes(raw.encode() if isinstance(raw, str) else raw)
    return find_sources([path])


def test_words_are_not_normalized(tmp_path):
    """Acceptance fact 7."""
    assert counted(write(tmp_path / "a.txt", "The the the\tThe"), tmp_path / "a.tsv") == {"The": 2, "the": 2}
    raw = "東京　全角 café cafe\u0301 a\xa0b c\u2028d\u0085e f\vg"
    assert len(counted(write(tmp_path / "b.txt", raw), tmp_path / "b.tsv")) == 6


def test_the_pile_filter_looks_at_names_only(tmp_path):
    """Acceptance fact 8; defect 4: by default nothing is left out."""
    metas = ['{"pile_set_name":"Github"}', '{"pile_set_name":"Pile-CC"}', '"Github"', '{"pile_set_name":5}', "{}"]
    lines = [f'{{"text":"word{index}","meta":{meta}}}' for index, meta in enumerate(metas)]
    sources = write(tmp_path / "x.jsonl", "\n".join(lines))
    kept = counted(sources, tmp_path / "kept.tsv", pile_sets=SABERTOOTH_PILE_SETS)
    assert sorted(kept) == ["word1", "word2", "word3", "word4"]
    assert verify(tmp_path / "kept.tsv")["skipped"]["pile_set_left_out"]["count"] == 1
    assert len(counted(sources, tmp_path / "all.tsv")) == 5


documents = st.lists(st.text(alphabet="ab \n\u3000\xa0\u2028\v\f\r\té", max_size=20), max_size=12)


@settings(max_examples=25)
@given(texts=documents, order=st.sampled_from(["count", "bytes", "sabertooth"]))
def test_any_split_merges_to_the_same_table(tmp_path_factory, texts, order):
    """Acceptance fact 9, over files, formats, workers' groups and memory."""
    folder = tmp_path_factory.mktemp("merge")
    texts = [*texts, "one word"]
    sources = []
    for index, text in enumerate(texts):
        sources += write(folder / f"{index}.jsonl", json.dumps({"text": text}))
    count_words(sources, folder / "together.tsv", order=order)
    tables = []
    for index, source in enumerate(sources):
        if texts[index].strip(" \n\r\t"):
            count_words([source], folder / f"{index}.tsv")
            tables += find_sources([folder / f"{index}.tsv"])
    count_words(tables, folder / "merged.tsv", order=order)
    expected = naive(*(text.encode() for text in texts))
    rows = b"".join(b"%b\t%d\n" % row for row in sorted(expected.items(), key=order_key(order)))
    assert (folder / "together.tsv").read_bytes() == (folder / "merged.tsv").read_bytes() == rows


@settings(max_examples=25)
@given(text=st.text(alphabet="a \n\u3000\xa0\u2028\v\r", max_size=40))
def test_text_files_count_as_their_documents_do(tmp_path_factory, text):
    """Lines of Unicode white space end documents and hold no words."""
    folder = tmp_path_factory.mktemp("text")
    sources = write(folder / "x.txt", text + "\nend")
    expected = naive(*(document.text.encode() for document in read_documents(sources)))
    assert counted(sources, folder / "x.tsv") == {word.decode(): count for word, count in expected.items()}


@pytest.fixture
def many_files(tmp_path, monkeypatch):
    original = words.group_sources
    monkeypatch.setattr(words, "group_sources", lambda sources, size: original(sources, 1))
    for index in range(4):
        (tmp_path / f"{index}.txt").write_text(" ".join(f"w{number * number % 997}" for number in range(index, 5000)))
    return find_sources([str(tmp_path / "*.txt")])


@pytest.mark.parametrize("order", ["count", "bytes", "sabertooth"])
@pytest.mark.parametrize("compiled", [True, False])
def test_spilling_and_workers_change_nothing(tmp_path, many_files, monkeypatch, order, compiled):
    if not compiled:
        monkeypatch.setattr(words, "new_table", PythonTable)
        monkeypatch.setattr(word_tables, "new_table", PythonTable)
    count_words(many_files, tmp_path / "one.tsv", order=order, workers=1)
    if compiled:
        count_words(many_files, tmp_path / "two.tsv", order=order, workers=2)
        assert (tmp_path / "one.tsv").read_bytes() == (tmp_path / "two.tsv").read_bytes()
        assert (tmp_path / "one.tsv.manifest.json").read_text().replace("one.tsv", "two.tsv") == (
            tmp_path / "two.tsv.manifest.json"
        ).read_text()
    monkeypatch.setattr(LocalEngine, "resources", lambda *_: Resources(1, 3000))
    monkeypatch.setattr(word_tables, "_MAX_MERGED_RUNS", 2)
    count_words(many_files, tmp_path / "spilled.tsv", order=order, workers=1, memory_bytes=50_000_000)
    on_disk = words.write_merged

    def tight(table, runs, write, order, folder, memory_bytes, merged):
        return on_disk(table, runs, write, order, folder, 10_000, merged)

    monkeypatch.setattr(words, "write_merged", tight)
    count_words(many_files, tmp_path / "tight.tsv", order=order, workers=1, memory_bytes=50_000_000)
    assert (tmp_path / "one.tsv").read_bytes() == (tmp_path / "spilled.tsv").read_bytes()
    assert (tmp_path / "one.tsv").read_bytes() == (tmp_path / "tight.tsv").read_bytes()


def test_an_interrupted_count_keeps_its_finished_groups(tmp_path, many_files, monkeypatch):
    count_words(many_files, tmp_path / "whole.tsv")
    original, calls = words.count_group, []

    def dying(task, **options):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(task)
        return original(task, **options)

    monkeypatch.setattr(words, "count_group", dying)
    with pytest.raises(KeyboardInterrupt):
        count_words(many_files, tmp_path / "out.tsv")
    assert not (tmp_path / "out.tsv").exists()
    calls.clear()
    calls.extend([None] * 3)  # beyond the crash; two of four groups are left
    count_words(many_files, tmp_path / "out.tsv")
    assert len(calls) == 5
    assert (tmp_path / "out.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()


@pytest.mark.parametrize(
    "row", ["word", "word\tx", "a\t1\t2", "\t3", "a\t-1", "a\t18446744073709551616", "a\t", "a\t1.5"]
)
def test_a_bad_row_of_a_table_is_named(tmp_path, row):
    with pytest.raises(DataError, match="line 3: invalid row"):
        count_words(write(tmp_path / "x.tsv", f"a\t1\n\n{row}\nb\t2\n"), tmp_path / "out.tsv")
    assert not (tmp_path / "out.tsv").exists()


def test_rows_of_other_tools_are_read(tmp_path):
    raw = "a\t+1\r\n\nb c\t2\na\t18446744073709551614"
    assert counted(write(tmp_path / "x.tsv", raw), tmp_path / "out.tsv") == {"a": 2**64 - 1, "b c": 2}


def test_an_input_without_words_and_an_existing_table_are_refused(tmp_path):
    with pytest.raises(DataError, match="no word"):
        count_words(write(tmp_path / "x.txt", " \n"), tmp_path / "out.tsv")
    assert not (tmp_path / "out.tsv").exists()
    sources = write(tmp_path / "y.txt", "a b")
    (tmp_path / "out.tsv").write_text("precious")
    with pytest.raises(DataError, match="already exists"):
        count_words(sources, tmp_path / "out.tsv")
    assert (tmp_path / "out.tsv").read_text() == "precious"
    count_words(sources, tmp_path / "new.tsv")
    assert count_words(sources, tmp_path / "new.tsv")["num_words"] == 2


def test_a_disk_too_full_for_the_manifest_leaves_no_table_without_one(tmp_path):
    sources = [source for number in range(100) for source in write(tmp_path / f"{number}.txt", "a b")]
    out, limits = tmp_path / "out" / "words.tsv", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # enough for the table, not for a list of 100 files
    try:
        with pytest.raises(RunError, match=r"no space left to write .*manifest"):
            count_words(sources, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not out.parent.exists() or not list(out.parent.iterdir())
    assert count_words(sources, out)["num_words"] == 200


def test_a_table_has_its_manifest_from_the_moment_it_has_its_name(tmp_path, monkeypatch):
    replace, seen = os.replace, []

    def watched(origin, target):
        seen.append((Path(target).name, (tmp_path / "words.tsv.manifest.json").exists()))
        replace(origin, target)

    monkeypatch.setattr(os, "replace", watched)
    count_words(write(tmp_path / "x.txt", "a b"), tmp_path / "words.tsv")
    assert ("words.tsv", True) in seen


def test_a_file_that_another_program_wrote_is_left_alone(tmp_path):
    (tmp_path / "words.tsv").write_text("precious")
    with pytest.raises(DataError, match="without a manifest"):
        count_words(write(tmp_path / "x.txt", "a b"), tmp_path / "words.tsv")
    assert (tmp_path / "words.tsv").read_text() == "precious"


def test_a_name_too_long_for_the_system_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot write"):
        count_words(write(tmp_path / "x.txt", "a b"), tmp_path / ("n" * 300))


def test_sums_beyond_64_bits_are_refused(tmp_path):
    tables = write(tmp_path / "x.tsv", "a\t18446744073709551615\n") + write(tmp_path / "y.tsv", "a\t1\n")
    with pytest.raises(DataError, match="64 bits"):
        count_words(tables, tmp_path / "out.tsv", workers=1)
    assert not (tmp_path / "out.tsv").exists()
