"""One of two ranks: trains the config of a run under DDP, then under FSDP2, into folders of a place."""

import sys
from pathlib import Path

import pretrainkit

if __name__ == "__main__":
    config, place = sys.argv[1:]
    for strategy in ("ddp", "fsdp2"):
        changes = [f"parallel.strategy={strategy}", "data.microbatch_size=1"]
        pretrainkit.train(pretrainkit.load_config(config, changes), Path(place) / strategy)
