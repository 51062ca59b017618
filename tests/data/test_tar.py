"""Random access into archives, and the tables kept beside them."""

import gzip
import io
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from pretrainkit.data.tar import TarReader, cached_table, cached_tables, expand_braces, members
from pretrainkit.errors import DataError


def write_tar(path: Path, files: dict[str, bytes], format: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_member_is_read_at_its_offset(tmp_path, format):
    long = "x" * 30 + "/" + "é" * 40 + ".jpg"  # beyond the plain header in the newer formats
    files = {"a.txt": b"", "b.bin": bytes(range(256)) * 9, long if format != tarfile.USTAR_FORMAT else "c": b"last"}
    path = write_tar(tmp_path / "a.tar", files, format)
    reader = TarReader([path])
    found = {name: reader.read(0, offset, size) for name, offset, size in members(path)}
    assert found == files


def test_bytes_of_a_name_that_are_not_utf8_are_escaped(tmp_path):
    entry = tarfile.TarInfo("café.jpg")
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.USTAR_FORMAT, encoding="latin-1") as archive:
        archive.addfile(entry)
    (member,) = members(tmp_path / "a.tar")
    assert member.name == "caf\\xe9.jpg"


@pytest.mark.parametrize("damage", ["cut", "gzip", "text", "absent"])
def test_an_incomplete_archive_is_refused_by_name(tmp_path, damage):
    path = write_tar(tmp_path / "a.tar", {"a": b"1" * 2000, "b": b"2" * 2000})
    content = path.read_bytes()
    path.write_bytes({"cut": content[:3000], "gzip": gzip.compress(content), "text": b"no" * 999}.get(damage, content))
    if damage == "absent":
        path.unlink()
    with pytest.raises(DataError, match=r"a\.tar cannot be read"):
        list(members(path))


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])
def test_every_whole_file_of_a_truncated_archive_is_read(tmp_path, format):
    files = {"a.jpg": b"1" * 700, "a.txt": b"2" * 20, "é.jpg": b"3" * 1024, "é.txt": b"", "c.jpg": b"4" * 511}
    path = write_tar(tmp_path / "a.tar", files, format)
    content, whole = path.read_bytes(), list(members(path))
    last = whole[-1].offset + 512
    for end in range(0, last + 512, 73):
        path.write_bytes(content[:end])
        reasons: list[str] = []
        found = list(members(path, reasons.append))
        assert found == [member for member in whole if member.offset + member.num_bytes <= end and member.offset <= end]
        assert len(reasons) == 1
    path.write_bytes(content[: last + 1024])
    assert list(members(path, reasons.append)) == whole
    assert len(reasons) == 1, "two blocks of zeros end an archive; one is enough"


@pytest.mark.parametrize("damage", ["hole", "never written", "two archives in one file"])
def test_zeros_before_the_end_of_the_file_are_not_the_end_of_the_archive(tmp_path, damage):
    path = write_tar(tmp_path / "a.tar", {"a": b"1" * 700, "b": b"2" * 700, "c": b"3" * 700})
    content, (first, second, *_) = path.read_bytes(), list(members(path))
    header = second.offset - 512
    hole = content[:header] + bytes(512) + content[header + 512 :]
    kept = content[:header]
    path.write_bytes({"hole": hole, "never written": kept + bytes(2**21)}.get(damage, content * 2))
    reasons: list[str] = []
    found = list(members(path, reasons.append))
    assert found[0] == first
    assert len(reasons) == 1
    with pytest.raises(DataError, match=r"it is truncated or damaged at byte [\d,]+ of "):
        list(members(path))


def test_more_archives_than_are_kept_open_are_read_from_many_threads(tmp_path):
    paths = [write_tar(tmp_path / f"{n}.tar", {"a": str(n).encode() * 100}) for n in range(90)]
    reader = TarReader(paths)
    offsets = [next(members(path)) for path in paths]

    def read(n: int) -> bytes:
        return reader.read(n % 90, offsets[n % 90].offset, offsets[n % 90].num_bytes)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(900))) == [str(n % 90).encode() * 100 for n in range(900)]


def test_reading_behind_the_end_is_an_error(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"a": b"1"})
    with pytest.raises(OSError, match="ends before"):
        TarReader([path]).read(0, path.stat().st_size - 5, 10)


def test_a_table_is_built_once_until_its_archive_or_settings_change(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"a": b"1"})
    made = []

    def make() -> pa.Table:
        made.append(1)
        return pa.table({"n": [len(made)]})

    assert [cached_table(path, "s", make)["n"][0].as_py() for _ in range(3)] == [1, 1, 1]
    assert cached_table(path, "other", make)["n"][0].as_py() == 2
    write_tar(path, {"a": b"1", "b": b"2" * 9999})
    assert cached_table(path, "s", make)["n"][0].as_py() == 3
    next(tmp_path.glob("*.index")).write_bytes(b"torn")
    cached_table(path, "s", make)
    cached_table(path, "other", make)
    assert cached_table(path, "s", make).num_rows == 1
    assert not list(tmp_path.glob(".*"))  # nothing half-written stays


def test_what_a_killed_process_left_of_a_table_is_removed(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "a.tar", {"a": b"1"})
    kept: list[str] = []

    def kill(*_: object) -> None:
        kept.extend(file.name for file in tmp_path.glob(".*"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_, **options: None)  # as if the process did not get there
        patched.setattr(pa.ipc, "new_file", kill)
        with pytest.raises(KeyboardInterrupt):
            cached_table(path, "s", lambda: pa.table({"n": [1]}))
    assert [file.name for file in tmp_path.glob(".*")] == kept != []
    cached_table(path, "s", lambda: pa.table({"n": [1]}))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("column", [pa.array([0, None]), pa.array(["0", "1"]), pa.nulls(2)])
def test_a_stored_table_without_places_of_members_is_built_again(tmp_path, column):
    path = write_tar(tmp_path / "a.tar", {"a": b"1"})
    damaged = cached_table(path, "s", lambda: pa.table({"offset": column, "num_bytes": [1, 1]}))
    assert damaged["offset"].null_count or damaged["offset"].type == pa.string()
    whole = pa.table({"offset": [0, 1], "num_bytes": [1, 1]})
    assert cached_table(path, "s", lambda: whole).equals(whole)


def test_a_stored_table_with_two_columns_of_one_name_is_built_again(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"a": b"1"})
    numbers = pa.array([0])
    cached_table(path, "s", lambda: pa.table([numbers] * 3, names=["offset", "num_bytes", "num_bytes"]))
    whole = pa.table({"offset": [0], "num_bytes": [1]})
    assert cached_table(path, "s", lambda: whole).equals(whole)


def test_long_indexing_reports_its_progress(tmp_path, caplog):
    paths = [write_tar(tmp_path / f"{number}.tar", {"a": b"1"}) for number in range(3)]

    def index(seconds: float) -> list[str]:
        caplog.clear()
        tables = cached_tables(paths, "s", lambda path: pa.table({"n": [path.stem]}), seconds_between_lines=seconds)
        assert [table["n"][0].as_py() for table in tables] == ["0", "1", "2"]
        return [record.message for record in caplog.records]

    assert index(60) == []
    assert [f"{number} of 3 archives" in line for number, line in enumerate(index(0), 1)] == [True] * 3


def test_a_table_is_written_to_the_cache_if_the_folder_of_the_archive_is_not_writable(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "a.tar", {"a": b"1"})
    monkeypatch.setenv("PRETRAINKIT_CACHE", str(tmp_path / "cache"))
    open_file = open

    def refusing(name, mode="r", *rest, **options):
        if "w" in mode and Path(name).parent.parent == tmp_path:
            raise PermissionError(13, "Permission denied")
        return open_file(name, mode, *rest, **options)

    monkeypatch.setattr("builtins.open", refusing)
    made = []
    for _ in range(2):
        cached_table(path, "s", lambda: made.append(1) or pa.table({"n": [1]}))
    assert len(made) == 1
    assert len(list((tmp_path / "cache").rglob("*.index"))) == 1


def test_braces_expand_to_numbers_and_choices():
    assert expand_braces("a.tar") == ["a.tar"]
    assert expand_braces("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert expand_braces("{x,y}/{0..1}.tar") == ["x/0.tar", "x/1.tar", "y/0.tar", "y/1.tar"]
