"""Run by test_pixel_two_ranks.py on two processes: trains, and goes on.

Arguments: FOLDER SETTINGS... For each strategy `FOLDER/STRATEGY` is made, and `FOLDER/half-STRATEGY` is resumed.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed import TCPStore

import pretrainkit


@contextmanager
def meeting(place: TCPStore, name: str) -> Iterator[None]:
    """A store of its own for a process group: what an earlier group of the same processes left would confuse it."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False) if os.environ["RANK"] == "0" else None
    if store is not None:
        place.set(name, str(store.port))
    os.environ["MASTER_PORT"] = place.get(name).decode()
    yield


if __name__ == "__main__":
    folder, *settings = sys.argv[1:]
    place = TCPStore("localhost", int(os.environ["MASTER_PORT"]), is_master=False)
    for strategy in ("ddp", "fsdp2"):
        chosen = f"parallel.strategy={strategy}"
        config = pretrainkit.load_config("pixel/tiny", [*settings, chosen])
        with meeting(place, strategy):
            pretrainkit.train(config, Path(folder) / strategy, device="cpu")
        with meeting(place, f"half-{strategy}"):
            pretrainkit.resume(Path(folder) / f"half-{strategy}", [chosen], device="cpu")
