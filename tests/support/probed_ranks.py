"""One of two ranks: pretrains with probes and prints its last metrics."""

import json
import sys
from pathlib import Path

from support.probed_bert import NO_DROPOUT, PROBES, pretrain

shards, glue, out = sys.argv[1:]
metrics = pretrain(Path(shards), Path(glue), Path(out), PROBES, "parallel.strategy=fsdp2", *NO_DROPOUT)
print("METRICS", json.dumps({name: value for name, value in metrics.items() if "probe" in name}))
