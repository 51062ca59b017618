"""Archives: equal bytes for equal folders; nothing damaged, foreign or climbing out is unpacked."""

import io
import json
import shutil
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pretrainkit.corpus.pack import pack, unpack
from pretrainkit.errors import DataError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "corpus/train").mkdir(parents=True)
    (tmp_path / "corpus/train/part-00000-of-00001.jsonl").write_text('{"text":"a"}\n')
    (tmp_path / "corpus/train/manifest.json").write_text("{}")
    return tmp_path / "corpus"


def archive_of(path, members, listed=None):
    """A tar of (name, content or TarInfo); `listed` in its pack.json, by default all as they are."""
    import hashlib

    files = listed or [
        {"name": name, "num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in members
        if isinstance(content, bytes)
    ]
    contents = json.dumps({"kind": "pack", "files": files}).encode()
    with tarfile.open(path, "w") as tar:
        for name, content in [("pack.json", contents), *members]:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                tar.addfile(member)
    return path


def test_packed_files_are_unpacked_equal_and_equal_folders_give_equal_archives(tmp_path, folder):
    pack([folder], tmp_path / "a.tar")
    pack([folder], tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    for _ in range(2):  # the second time keeps what is there
        assert len(unpack(tmp_path / "a.tar", tmp_path / "out")["files"]) == 2
    for path in folder.rglob("*.json*"):
        assert (tmp_path / "out/corpus" / path.relative_to(folder)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil-of-a-test", "a/../../evil", "..", "a\\..\\evil"])
def test_no_path_climbs_out(tmp_path, name):
    archive = archive_of(tmp_path / "a.tar", [(name, b"x")])
    with pytest.raises(DataError, match="outside"):
        unpack(archive, tmp_path / "out/inner")
    assert not list(tmp_path.rglob("evil*"))


NAMES = st.lists(
    st.sampled_from(["..", ".", "a", "b.jsonl", "", "~", "\\", "\0", "C:", "é" * 60]), min_size=1, max_size=5
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(NAMES.map("/".join), min_size=1, max_size=4), kind=st.sampled_from([None, b"2", b"1", b"5", b"3"])
)
def test_whatever_names_and_kinds_an_archive_has_nothing_appears_outside(tmp_path, names, kind):
    place = tmp_path / "deep" / "er"
    place.mkdir(parents=True, exist_ok=True)
    content = b"x" if kind is None else (kind, "../../../evil")
    archive = archive_of(place / "a.tar", [(name, content) for name in names])
    try:
        unpack(archive, place / "out")
    except DataError:
        pass
    finally:
        shutil.rmtree(place / "out", ignore_errors=True)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar", "deep", "er"]


def test_files_that_unfold_without_end_and_endless_lists_are_refused(tmp_path):
    member = tarfile.TarInfo("a/b")
    member.size, member.pax_headers = 512, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a/b"}
    member.pax_headers["GNU.sparse.realsize"] = str(10**15)
    listed = [{"name": "a/b", "num_bytes": 10**15, "sha256": ""}]
    archive = archive_of(tmp_path / "a.tar", [], listed)
    with tarfile.open(archive, "a", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member, io.BytesIO(b"0\n".ljust(512, b"\0")))
    with pytest.raises(DataError, match="not a plain file"):
        unpack(archive, tmp_path / "out")
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        contents = tarfile.TarInfo("pack.json")
        contents.size = 200_000
        tar.addfile(contents, io.BytesIO(b"[" * 200_000))
    with pytest.raises(DataError, match="not readable"):
        unpack(tmp_path / "b.tar", tmp_path / "out")
    listed = [{"name": "a/b", "num_bytes": 10**15, "sha256": ""}]
    with pytest.raises(DataError, match="is damaged"):
        unpack(archive_of(tmp_path / "c.tar", [("a/b", b"x")], listed), tmp_path / "out")


def test_no_file_is_written_through_a_link(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out/a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="through an existing symbolic link"):
        unpack(archive_of(tmp_path / "a.tar", [("a/evil", b"x")]), tmp_path / "out")
    listed = [{"name": "b", "num_bytes": 0, "sha256": ""}]
    link = archive_of(tmp_path / "b.tar", [("b", (tarfile.SYMTYPE, "/etc/passwd"))], listed)
    with pytest.raises(DataError, match="not a plain file"):
        unpack(link, tmp_path / "out2")


def test_damaged_missing_and_foreign_files_are_refused(tmp_path):
    listed = [{"name": "a", "num_bytes": 1, "sha256": "0" * 64}]
    with pytest.raises(DataError, match="damaged"):
        unpack(archive_of(tmp_path / "a.tar", [("a", b"x")], listed), tmp_path / "out")
    assert not (tmp_path / "out/a").exists()
    with pytest.raises(DataError, match="1 files are missing, such as a"):
        unpack(archive_of(tmp_path / "b.tar", [], listed), tmp_path / "out")
    with pytest.raises(DataError, match="not listed in"):
        unpack(archive_of(tmp_path / "c.tar", [("z", b"x")], listed), tmp_path / "out")
    (tmp_path / "d.tar").write_bytes((tmp_path / "c.tar").read_bytes()[:700])
    with pytest.raises(DataError, match="copy it again"):
        unpack(tmp_path / "d.tar", tmp_path / "out")
    (tmp_path / "e.tar").write_bytes(b"no tar")
    with pytest.raises(DataError, match="cannot be read"):
        unpack(tmp_path / "e.tar", tmp_path / "out")


def test_folders_that_cannot_be_packed_are_named(tmp_path, folder):
    with pytest.raises(DataError, match="two folders are named corpus"):
        pack([folder, folder], tmp_path / "a.tar")
    (folder / ".work").mkdir()
    with pytest.raises(DataError, match="not finished"):
        pack([folder], tmp_path / "a.tar")
    with pytest.raises(DataError, match="not a folder with files"):
        pack([tmp_path / "none"], tmp_path / "a.tar")
