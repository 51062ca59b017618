"""One of two ranks: trains the config of a run under DDP, then under FSDP2, into folders of a place."""

import os
import sys
from pathlib import Path

from torch.distributed import TCPStore

import pretrainkit
from two_processes import meeting

if __name__ == "__main__":
    config, place = sys.argv[1:]
    stores = TCPStore("localhost", int(os.environ["MASTER_PORT"]), is_master=False)
    for strategy in ("ddp", "fsdp2"):
        changes = [f"parallel.strategy={strategy}", "data.microbatch_size=2"]
        with meeting(stores, strategy):
            pretrainkit.train(pretrainkit.load_config(config, changes), Path(place) / strategy)
