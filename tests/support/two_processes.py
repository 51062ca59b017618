"""Ranks of a script on this machine, for tests: no launcher, and no port that another process may take."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed import TCPStore

from support.warm_python import run_all_warm


def run_two(script: Path, *arguments: str) -> list[str]:
    """Return the output of each of two ranks of `python SCRIPT ARGUMENTS...`; fail with all output unless both ended
    with 0."""
    return run_ranks(2, script, *arguments)


def run_ranks(num: int, script: Path, *arguments: str, local_world_size: int | None = None) -> list[str]:
    """The same for `num` ranks; where `local_world_size` is given, as on machines with this number of ranks each.

    The ranks meet at a store of this process, which holds its port from the start: a free port that is looked up first
    may be gone when rank 0 binds it.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    place = {"WORLD_SIZE": str(num), "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "OMP_NUM_THREADS": "1"}
    place["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    local = local_world_size or num
    place["LOCAL_WORLD_SIZE"] = str(local)
    ended = run_all_warm(
        script, arguments, [place | {"RANK": str(n), "LOCAL_RANK": str(n % local)} for n in range(num)]
    )
    codes = [rank.returncode for rank in ended]
    told = "\n".join(f"rank {number}:\n{rank.stdout}{rank.stderr}" for number, rank in enumerate(ended))
    assert codes == [0] * num, f"the ranks ended with {codes}\n{told}"
    return [rank.stdout for rank in ended]


@contextmanager
def meeting(place: TCPStore, name: str) -> Iterator[None]:
    """In a rank that makes one process group after another: a store of its own for the next one, because what an
    earlier group of the same processes left would confuse it. `place` is the store of `run_two`."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False) if os.environ["RANK"] == "0" else None
    if store is not None:
        place.set(name, str(store.port))
    os.environ["MASTER_PORT"] = place.get(name).decode()
    yield
