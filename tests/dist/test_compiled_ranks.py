"""Two processes whose blocks are compiled, with DDP and with FSDP2: traced forwards and backwards, and run as traced.
What Inductor makes of that is in `codegen/test_inductor_ranks.py`."""

from pathlib import Path

import pytest
from support import compiled_ranks
from support.two_processes import run_two

pytestmark = pytest.mark.slow


def test_compiled_blocks_train_as_others_do_on_two_ranks(tmp_path: Path) -> None:
    run_two(Path(compiled_ranks.__file__), str(tmp_path), "aot_eager")
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {f"check_compiled_blocks_train_as_others_do.{rank}": "ok" for rank in range(2)}
