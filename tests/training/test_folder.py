"""Folders of runs."""

from pathlib import Path

import pytest

from pretrainkit.errors import InputError
from pretrainkit.training.folder import CONFIG, PROVENANCE, RunFolder


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
