"""Run by test_pixel_two_ranks.py on two processes: trains, continues, and fine-tunes.

Arguments: FOLDER SETTINGS... For each strategy `FOLDER/STRATEGY` is trained, `FOLDER/half-STRATEGY` is resumed, and
`FOLDER/tags-STRATEGY` is fine-tuned with the settings of `FOLDER/tags.json`."""

import json
import os
import sys
from pathlib import Path

from torch.distributed import TCPStore

import pretrainkit
from support.two_processes import meeting

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
        tags = pretrainkit.load_config("glue/tags", [*json.loads((Path(folder) / "tags.json").read_text()), chosen])
        with meeting(place, f"tags-{strategy}"):
            pretrainkit.train(tags, Path(folder) / f"tags-{strategy}", device="cpu")
