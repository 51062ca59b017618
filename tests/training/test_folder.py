"""Folders of runs."""

from pathlib import Path

import pytest

from pretrainkit.errors import InputError
from pretrainkit.training.folder import CONFIG, RunFolder


def test_a_run_that_was_killed_while_it_wrote_its_config_can_be_started_again(tmp_path: Path) -> None:
    (tmp_path / f".{CONFIG}.partial").write_text("recipe: be")
    folder = RunFolder(tmp_path)
    folder.prepare()
    (tmp_path / "notes.txt").write_text("not of a run")
    with pytest.raises(InputError, match="something other than a run"):
        folder.prepare()
