"""Folders of runs."""

import os
import subprocess
from pathlib import Path

import pytest

import pretrainkit.training.folder
from pretrainkit.errors import InputError
from pretrainkit.training.folder import CONFIG, PROVENANCE, RunFolder, environment


def test_a_run_that_was_killed_while_it_wrote_its_config_can_be_started_again(tmp_path: Path) -> None:
    (tmp_path / f".{CONFIG}.partial").write_text("recipe: be")
    folder = RunFolder(tmp_path)
    folder.prepare()
    (tmp_path / "notes.txt").write_text("not of a run")
    with pytest.raises(InputError, match="something other than a run"):
        folder.prepare()


def test_a_run_that_was_killed_while_the_files_of_an_earlier_start_were_deleted_can_be_started_again(
    tmp_path: Path,
) -> None:
    for name in (CONFIG, PROVENANCE, ".tokenizer-50726bfd/manifest.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    folder = RunFolder(tmp_path)
    folder.prepare()
    assert folder.provenance() == {}
    folder.prepare()


def test_reading_the_commit_of_the_code_writes_nothing_into_its_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill would otherwise leave the lock of git's index there."""
    monkeypatch.delenv("PRETRAINKIT_REVISION", raising=False)
    monkeypatch.setattr(pretrainkit.training.folder, "__file__", str(tmp_path / "folder.py"))
    (tmp_path / "folder.py").touch()
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "folder.py"), (*author, "commit", "-q", "-m", "a")):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    os.utime(tmp_path / "folder.py", (0, 0))  # git would write the new time into its index
    index = (tmp_path / ".git/index").read_bytes()
    assert len(environment()["git"]) == 40
    assert (tmp_path / ".git/index").read_bytes() == index
    monkeypatch.setattr(pretrainkit.training.folder, "__file__", str(tmp_path / "installed.py"))
    assert environment()["git"] is None  # the checkout is of another project
