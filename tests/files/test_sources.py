import gzip
import io
import json
import logging
import os
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import fsspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrainkit.corpus.shards import BuildSettings, build_corpus
from pretrainkit.errors import DataError, MissingPackageError
from pretrainkit.files.sources import SourceFile, find_sources, find_splits, plain_chunks, split_lines


def contents(source):
    return b"".join(plain_chunks(source))


def test_formats_follow_the_last_suffix_alone(tmp_path):
    """Acceptance fact 1: `.txt.zst` is JSONL. (`.gz`, which the original does not know, is too.)"""
    names = {"a.jsonl": "jsonl", "b.txt.zst": "jsonl", "c.jsonl.gz": "jsonl", "d.txt": "text", "e": "text"}
    names |= {"f.parquet": "parquet", "g.tsv": "tsv", "h.jsonl.txt": "text"}
    names |= {"I.JSONL": "jsonl", "J.JSON.GZ": "jsonl", "K.TXT": "text", "L.XML": "dump", "m.csv": "csv"}
    for name in names:
        (tmp_path / name).write_bytes(b"")
    found = find_sources([tmp_path])
    assert {source.address.rpartition("/")[2]: source.format for source in found} == names


def test_a_suffix_in_capital_letters_is_decompressed(tmp_path):
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(b"{}"))
    (tmp_path / "A.JSONL.ZST").write_bytes(zstandard.compress(b"{}"))
    assert [contents(source) for source in find_sources([tmp_path])] == [b"{}", b"{}"]


def test_linked_folders_are_read_once_each(tmp_path):
    for name in ("raw/a.txt", "other/b.txt", "other/deep/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "raw/linked").symlink_to("../other")
    (tmp_path / "raw/self").symlink_to(".")
    (tmp_path / "raw/twice").symlink_to("../other")
    (tmp_path / "other/back").symlink_to("../raw")
    (tmp_path / "raw/.lock").symlink_to("nowhere")
    names = [source.address.removeprefix(f"{tmp_path}/") for source in find_sources([tmp_path / "raw"])]
    assert names == ["raw/a.txt", "raw/linked/b.txt", "raw/linked/deep/c.txt"]


def put_set(folder, numbers, total, name="text-{:05d}-of-{:05d}.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (folder / name.format(number, total)).write_bytes(b"")


def test_missing_files_of_a_set_in_a_folder_are_refused(tmp_path, caplog):
    put_set(tmp_path / "set/deep", [0, 1, 2, 4, 5, 6, 8, 9], 10)
    put_set(tmp_path / "set", range(3), 3, "other-{}-of-{}.txt")
    with pytest.raises(DataError) as raised, caplog.at_level(logging.WARNING):
        find_sources([tmp_path / "set"])
    place = f"{tmp_path}/set/deep/text"
    problem = f"2 of 10 files of a set are missing, such as {place}-00003-of-00010.jsonl, {place}-00007-of-00010.jsonl"
    assert str(raised.value).startswith(f"{problem}\n  get them")
    assert not caplog.records
    # What was chosen is used, with a warning.
    advised = str(raised.value).partition("name its files: ")[2].strip("'")
    assert advised == f"{tmp_path}/set/deep/*.jsonl"
    by_name = [f"{tmp_path}/set/deep/./{path.name}" for path in sorted((tmp_path / "set/deep").iterdir())]
    for chosen in ([tmp_path / "set/**/*.jsonl"], [advised], by_name):
        with caplog.at_level(logging.WARNING):
            assert len(find_sources(chosen)) == 8
        assert [record.getMessage() for record in caplog.records] == [f"{problem}; the others are used"]
        caplog.clear()
    fsspec.filesystem("memory").put(f"{tmp_path}/set", "/gaps", recursive=True)
    with pytest.raises(DataError, match="2 of 10 files"):
        find_sources(["memory://gaps"])


@pytest.mark.parametrize(
    ("numbers", "total", "num_warnings"),
    [(range(10), 10, 0), (range(1, 11), 10, 0), ([0, 1], 10, 1), ([7], 10, 1), (range(5, 9), 3, 0), ([0], 10**12, 0)],
    ids=["from 0", "from 1", "the first ones", "one", "the total is that of a part", "a number"],
)
def test_a_small_part_of_a_set_is_a_warning(tmp_path, caplog, numbers, total, num_warnings):
    put_set(tmp_path / "set", numbers, total)
    with caplog.at_level(logging.WARNING):
        assert len(find_sources([tmp_path / "set"])) == len(numbers)
        assert len(caplog.records) == num_warnings
        find_sources([next((tmp_path / "set").iterdir())])
        assert len(caplog.records) == num_warnings


def test_files_of_a_set_that_are_held_out_are_not_missing(tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put_set(tmp_path / "train", range(9), 10)
    put_set(tmp_path / "valid", [9], 10)
    with caplog.at_level(logging.WARNING):
        assert len(find_sources([tmp_path / "train"])) == len(find_sources(["train"])) == 9
        assert len(find_sources([tmp_path / "valid"])) == 1
    assert not caplog.records
    (tmp_path / "train/text-00004-of-00010.jsonl").unlink()
    with pytest.raises(DataError, match=r"1 of 10 files .* such as .*text-00004-of-00010"):
        find_sources([tmp_path / "train"])


def test_names_with_hashes_are_those_of_one_set(tmp_path, caplog):
    for number in range(3):
        (tmp_path / f"train-{number:05d}-of-00003-{number:016x}.parquet").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert len(find_sources([tmp_path])) == 3
    assert not caplog.records
    (tmp_path / f"train-00001-of-00003-{1:016x}.parquet").unlink()
    with pytest.raises(DataError, match=r"1 of 3 files .* such as .*/train-00001-of-00003\.parquet"):
        find_sources([tmp_path])


def test_a_file_that_is_given_twice_is_reported(tmp_path, caplog):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_bytes(b"")
    assert len(find_sources([tmp_path, tmp_path / "[bc].txt"])) == 5
    assert f"files given several times: 2, such as {tmp_path}/b.txt" in caplog.text


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "b.txt").symlink_to("moved.txt")
    with pytest.raises(DataError, match=r"b\.txt is a link to .*moved\.txt, which does not exist"):
        find_sources([tmp_path])


def test_all_that_is_beside_the_splits_is_reported(tmp_path, caplog):
    for name in ("train/a.txt", "dev/b.txt", "test/c.txt", "more.txt", ".hidden/d.txt", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert find_splits([tmp_path]) == {"train": [tmp_path / "train"], "valid": [tmp_path / "dev"]}
    assert "only train and dev will be read, not more.txt, test" in caplog.text


def test_patterns_keep_their_order_and_sort_inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ["b/2.txt", "b/1.txt", "a/3.txt", "a/.hidden", "a/manifest.json", "a/_logs/x.txt"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [source.address for source in find_sources(["b/*.txt", "a"])] == ["b/1.txt", "b/2.txt", "a/3.txt"]
    assert [source.address for source in find_sources(["**/[13].txt"])] == ["a/3.txt", "b/1.txt"]


@pytest.mark.parametrize(
    "pattern", ["nothing-*.jsonl", "nothing.jsonl", "memory://nothing-here/*.jsonl", "file:///no/such"]
)
def test_a_pattern_without_match_is_named(pattern):
    with pytest.raises(DataError, match=r"nothing|no/such"):
        find_sources([pattern])


def test_an_unknown_protocol_is_named():
    with pytest.raises(DataError, match="quux"):
        find_sources(["quux://bucket/file.jsonl"])


def test_a_corpus_with_held_out_data_is_not_read_as_one(tmp_path):
    for split in ("train", "valid"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="held-out"):
        find_sources([tmp_path])


def test_fsspec_addresses_read_like_local_files(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"local\n")
    with fsspec.open("memory://corpus-test/deep/b.txt", "wb") as file:
        file.write(b"memory\n")
    remote = find_sources(["memory://corpus-test/deep"]) + find_sources(["memory://corpus-test/*/*.txt"])
    assert [contents(source) for source in remote] == [b"memory\n"] * 2
    (local,) = find_sources([f"file://{tmp_path}/a.txt"])
    assert contents(local) == b"local\n"
    assert local.num_bytes == 6


@pytest.fixture
def made_corpus(tmp_path):
    (tmp_path / "raw.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n{"text": "three"}\n')
    settings = BuildSettings(num_shards=2, split_folders=False)
    build_corpus(find_sources([tmp_path / "raw.jsonl"]), tmp_path / "corpus", settings)
    return tmp_path / "corpus"


def test_a_corpus_that_lacks_a_shard_is_not_read_as_if_it_were_whole(made_corpus):
    assert len(find_sources([made_corpus])) == 2
    (made_corpus / "part-00001-of-00002.jsonl").unlink()
    with pytest.raises(DataError, match=r"part-00001-of-00002.jsonl is missing"):
        find_sources([made_corpus])
    assert len(find_sources([f"{made_corpus}/*.jsonl"])) == 1  # a requested subset


@pytest.mark.parametrize("pattern", ["corpus", "corpus/*.jsonl", "corpus/part-00000-of-00002.jsonl"])
def test_an_unfinished_corpus_is_not_read_as_if_it_were_whole(made_corpus, pattern):
    (made_corpus / "manifest.json").unlink()
    (made_corpus / ".work").mkdir()
    (made_corpus / ".work/plan.json").write_text("{}")
    with pytest.raises(DataError, match="is not finished"):
        find_sources([made_corpus.parent / pattern])


def test_a_manifest_of_another_program_is_ignored(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}")
    for content in ("not JSON", "[]", '{"kind": "other", "shards": [{"name": "x"}]}'):
        (tmp_path / "manifest.json").write_text(content)
        assert len(find_sources([tmp_path])) == 1


def test_a_remote_corpus_with_held_out_data_is_not_read_as_one():
    for split in ("train", "valid"):
        with fsspec.open(f"memory://corpus-both/{split}/manifest.json", "wb") as file:
            file.write(b"{}")
    with pytest.raises(DataError, match="name one of them: memory://corpus-both/train or"):
        find_sources(["memory://corpus-both"])


class _OddSystem(fsspec.AbstractFileSystem):
    """A driver with its own type of error, which fails when a file is requested or read."""

    protocol = "corpusodd"

    class OddError(Exception):
        pass

    def exists(self, path, **_):
        if "unreachable" in path:
            raise self.OddError("no route")
        return True

    def isdir(self, path):
        return False

    def info(self, path, **_):
        return {"name": path, "size": 9, "type": "file"}

    def _open(self, path, *_, **__):
        return _OddFile()


class _OddFile(io.BytesIO):
    def read(self, *_):
        raise _OddSystem.OddError("connection lost")


def test_errors_that_only_a_driver_knows_are_one_message():
    fsspec.register_implementation("corpusodd", _OddSystem, clobber=True)
    with pytest.raises(DataError, match=r"corpusodd://unreachable/x.jsonl cannot be read: no route"):
        find_sources(["corpusodd://unreachable/x.jsonl"])
    (source,) = find_sources(["corpusodd://host/x.jsonl"])
    with pytest.raises(DataError, match="cannot be read: connection lost"):
        list(plain_chunks(source))


@pytest.mark.parametrize(("protocol", "package"), [("s3", "s3fs"), ("gs", "gcsfs"), ("https", "aiohttp")])
def test_a_missing_driver_is_named_with_its_extra(protocol, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    with pytest.raises(MissingPackageError, match=rf"'{package}'[\s\S]*pip install 'pretrainkit\[(\w+)\]'") as caught:
        find_sources([f"{protocol}://somewhere/x.jsonl"])
    named = str(caught.value).rpartition("[")[2].rpartition("]")[0]
    extras = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
    assert extras["project"]["optional-dependencies"][named][0].startswith(f"fsspec[{named}]")


@settings(max_examples=25)
@given(pieces=st.lists(st.text(max_size=60).map(lambda text: text.replace("\0", "").encode()), max_size=4))
def test_multi_frame_zst_and_gz_are_read_to_the_end(tmp_path_factory, pieces):
    folder = tmp_path_factory.mktemp("frames")
    for suffix, pack in ((".zst", zstandard.ZstdCompressor().compress), (".gz", gzip.compress)):
        path = folder / f"x{suffix}"
        path.write_bytes(b"".join(map(pack, pieces)))
        assert contents(SourceFile(str(path), "jsonl", 0)) == b"".join(pieces)


@pytest.mark.parametrize("suffix", [".zst", ".gz"])
@pytest.mark.parametrize("num_frames", [1, 2])
def test_truncation_at_any_byte_is_an_error(tmp_path, suffix, num_frames):
    pack = zstandard.ZstdCompressor().compress if suffix == ".zst" else gzip.compress
    frame = pack(json.dumps({"text": "word " * 50}).encode())
    whole = frame * num_frames
    path = tmp_path / f"x{suffix}"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        if length == len(frame):
            continue
        with pytest.raises(DataError, match="truncated"):
            contents(SourceFile(str(path), "jsonl", 0))


@pytest.mark.parametrize("suffix", [".zst", ".gz"])
def test_garbage_is_an_error_that_names_the_file(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"this is not packed" * 10)
    with pytest.raises(DataError, match="damaged") as caught:
        contents(SourceFile(str(path), "jsonl", 0))
    assert str(path) in str(caught.value)


@given(
    data=st.binary(max_size=60).map(lambda b: b.replace(b"\x00", b"\n")), cuts=st.lists(st.integers(0, 60), max_size=5)
)
def test_lines_do_not_depend_on_chunks(data, cuts):
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[a:b] for a, b in pairwise(edges)]
    expected = data.split(b"\n")
    assert list(split_lines(iter(chunks), "a.txt")) == (expected if expected[-1] else expected[:-1])


def test_shards_are_known_by_their_content_whenever_they_were_written(tmp_path):
    (tmp_path / "raw.txt").write_text("One.\n\nTwo.\n")
    stamps = {}
    for name in ("one", "two"):
        settings = BuildSettings(num_shards=2, split_folders=False)
        build_corpus(find_sources([tmp_path / "raw.txt"]), tmp_path / name, settings)
        os.utime(tmp_path / name / "part-00000-of-00002.jsonl", ns=(1, 1 if name == "one" else 2))
        stamps[name] = [source.stamp for source in find_sources([tmp_path / name])]
        assert stamps[name] == [source.stamp for source in find_sources([tmp_path / name / "part-*"])]
    assert stamps["one"] == stamps["two"]
    # A shard that differs from the manifest is an ordinary file.
    shard = tmp_path / "two/part-00000-of-00002.jsonl"
    shard.write_bytes(shard.read_bytes() + b"{}\n")
    assert [source.stamp for source in find_sources([shard])] == [str(shard.stat().st_mtime_ns)]
