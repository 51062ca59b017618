"""Two ranks of a script on this machine, for tests: no launcher, and no port that another process may take."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed import TCPStore

SECONDS = 240


def run_two(script: Path, *arguments: str) -> list[str]:
    """What each rank of `python SCRIPT ARGUMENTS...` printed; fails with all of it unless both ended with 0.

    The ranks meet at a store of this process, which holds its port from the start: a free port that is looked up first
    may be gone when rank 0 binds it.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "OMP_NUM_THREADS": "1"}
    place |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    codes = [rank.returncode for rank in ranks]
    told = "\n".join(f"rank {number}:\n{output}" for number, output in enumerate(outputs))
    assert codes == [0, 0], f"the ranks ended with {codes}\n{told}"
    return outputs


@contextmanager
def meeting(place: TCPStore, name: str) -> Iterator[None]:
    """In a rank that makes one process group after another: a store of its own for the next one, because what an
    earlier group of the same processes left would confuse it. `place` is the store of `run_two`."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False) if os.environ["RANK"] == "0" else None
    if store is not None:
        place.set(name, str(store.port))
    os.environ["MASTER_PORT"] = place.get(name).decode()
    yield
