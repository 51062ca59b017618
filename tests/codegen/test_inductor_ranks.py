"""Two processes whose blocks Inductor compiles, with DDP and with FSDP2: on request, as it takes a minute."""

import importlib.util
from pathlib import Path

import pytest

from support import compiled_ranks
from support.two_processes import run_two

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="on request: make test-codegen"),
]


def test_blocks_of_inductor_train_as_others_do_on_two_ranks(tmp_path: Path) -> None:
    run_two(Path(compiled_ranks.__file__), str(tmp_path), "inductor")
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {f"check_compiled_blocks_train_as_others_do.{rank}": "ok" for rank in range(2)}
