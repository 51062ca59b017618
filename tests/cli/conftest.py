"""Runs the command line in this process."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from pretrainkit.cli.main import main


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(monkeypatch, capfd) -> Callable[..., Result]:
    """A function of the words behind `pretrainkit`: exit code and what was printed."""
    monkeypatch.setenv("PRETRAINKIT_DEBUG", "")  # so that --debug does not outlive the test

    def run(*words: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["pretrainkit", *map(str, words)])
        capfd.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Result(code, *capfd.readouterr())

    return run
