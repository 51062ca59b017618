import errno
import json
import os
from pathlib import Path

import pytest

from pretrainkit.errors import DataError, RunError
from pretrainkit.files.manifest import (
    atomic_file,
    explained_write_errors,
    file_sha256,
    fingerprint,
    read_manifest,
    verify,
    write_manifest,
)


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "deep" / "file"
    with atomic_file(path) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_no_new_one(tmp_path, failure):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(failure), atomic_file(path) as file:  # noqa: PT012 - the failure is the block's
        file.write(b"new")
        raise failure
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_a_failure_with_a_fix(tmp_path, number):
    with pytest.raises(RunError, match="no space left") as caught, explained_write_errors(tmp_path / "file"):
        raise OSError(number, os.strerror(number))
    assert "free some space" in str(caught.value)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_disk_that_fails_is_a_failure_that_names_the_file(tmp_path, monkeypatch, number):
    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    expected = f"fails\n  the system reports: {os.strerror(number)}"
    with pytest.raises(RunError, match=expected) as caught, atomic_file(tmp_path / "file") as file:
        file.write(b"x")
    assert str(tmp_path / "file") in str(caught.value)
    assert caught.value.exit_code == 1
    assert os.listdir(tmp_path) == []


def test_a_full_device_is_reported_when_the_bytes_are_synced(tmp_path):
    with (
        pytest.raises(RunError, match="no space left"),
        explained_write_errors(Path("/dev/full")),
        open("/dev/full", "wb", buffering=0) as file,
    ):
        file.write(b"x")


def test_a_path_below_a_file_is_a_data_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="cannot write"), atomic_file(tmp_path / "file" / "below"):
        pass


def test_manifests_of_folders_and_files(tmp_path):
    table = tmp_path / "words.tsv"
    table.write_bytes(b"a\t1\n")
    entry = {"name": "words.tsv", "num_bytes": 4, "sha256": file_sha256(table)}
    assert write_manifest(table, {"shards": [entry]}) == tmp_path / "words.tsv.manifest.json"
    assert verify(table)["shards"] == [entry]
    assert write_manifest(tmp_path, {"shards": [entry]}) == tmp_path / "manifest.json"
    table.write_bytes(b"b\t1\n")
    with pytest.raises(DataError, match="sha256"):
        verify(tmp_path)
    table.write_bytes(b"b\t11\n")
    with pytest.raises(DataError, match="5 bytes instead of 4"):
        verify(table)
    table.unlink()
    with pytest.raises(DataError, match="missing"):
        verify(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", "\x00"])
def test_broken_manifests_are_named(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_a_missing_manifest_is_an_error_with_a_fix(tmp_path):
    with pytest.raises(DataError, match="run it again"):
        read_manifest(tmp_path)


def test_fingerprint_ignores_the_order_of_keys_and_nothing_else():
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint(json.loads('{"b": [1, 2], "a": 1}'))
    assert fingerprint({"a": 1, "b": [1, 2]}) != fingerprint({"a": 1, "b": [2, 1]})


def test_names_that_are_not_unicode_have_a_fingerprint():
    assert fingerprint(["a\ud800"]) != fingerprint(["a\udcff"])
