"""Ranks that leave their group end, whatever of it is still alive."""

from pathlib import Path

from support import leaving_ranks
from support.two_processes import run_two


def test_ranks_end_while_a_thread_of_their_group_waits_for_python() -> None:
    assert run_two(Path(leaving_ranks.__file__)) == ["left\n", "left\n"]
