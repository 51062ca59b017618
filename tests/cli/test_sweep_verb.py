"""Command lines of `pretrainkit sweep`."""

import sys
from unittest import mock

import pytest

from pretrainkit.cli.main import main
from pretrainkit.cli.sweep import with_repeated_option
from pretrainkit.sweep.runs import Worker


def expanded(line: str) -> str:
    return " ".join(with_repeated_option(line.split(), "--lr"))


def test_numbers_behind_the_option_are_further_values() -> None:
    assert expanded("glue --lr 5e-5 4e-5 3e-5 --seeds 3") == "glue --lr 5e-5 --lr 4e-5 --lr 3e-5 --seeds 3"


def test_the_option_may_still_be_repeated() -> None:
    assert expanded("glue --lr 5e-5 --lr 4e-5 2e-5") == "glue --lr 5e-5 --lr 4e-5 --lr 2e-5"


def test_other_numbers_and_settings_stay() -> None:
    line = "glue --seeds 3 --lr 1e-4 data.num_epochs=2 --jobs 4 7"
    assert expanded(line) == line


def test_an_interrupt_prints_how_to_resume(tmp_path, capfd) -> None:
    words = ["sweep", "glue", "--from", str(tmp_path), "--tasks", "rte", "--seeds", "1", "--out", str(tmp_path / "out")]
    interrupted = mock.patch.object(Worker, "run", side_effect=KeyboardInterrupt)
    with interrupted, mock.patch.object(sys, "argv", ["pretrainkit", *words]), pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert "run the same command again to continue" in capfd.readouterr().err
