"""Ranks that only report that they run."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def rank_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Write a module by name and text, and return its folder, in which started ranks import it."""

    def write(name: str, text: str) -> Path:
        (tmp_path / f"{name}.py").write_text(text)
        source = Path(sys.modules["pretrainkit"].__path__[0]).parent
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(source)]))
        return tmp_path

    return write
