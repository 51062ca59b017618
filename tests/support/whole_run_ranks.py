"""One of two ranks: trains the config of a run under DDP, then under FSDP2, into folders of a place.

Arguments: CONFIG PLACE CHANGES...
"""

import os
import sys
from pathlib import Path

from torch.distributed import TCPStore

import pretrainkit
from support.two_processes import meeting

if __name__ == "__main__":
    config, place, *changes = sys.argv[1:]
    store = TCPStore("localhost", int(os.environ["MASTER_PORT"]), is_master=False)
    for strategy in ("ddp", "fsdp2"):
        with meeting(store, strategy):
            settings = [f"parallel.strategy={strategy}", *changes]
            pretrainkit.train(pretrainkit.load_config(config, settings), Path(place) / strategy)
