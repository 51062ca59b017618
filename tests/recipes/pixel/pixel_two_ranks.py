"""Run by test_pixel_two_ranks.py on two processes: trains, and goes on.

Arguments: FOLDER SETTINGS... For each strategy `FOLDER/STRATEGY` is made, and `FOLDER/half-STRATEGY` is resumed.
"""

import os
import sys
from pathlib import Path

from torch.distributed import TCPStore

import pretrainkit
from two_processes import meeting

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
