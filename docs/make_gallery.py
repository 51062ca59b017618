"""Run the demos and keep what they printed: `python docs/make_gallery.py --seeds 0 1 2 [NAME...]`."""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from pretrainkit.demo.catalogue import DEMOS


def run_demo(name: str, seed: int, out: Path) -> None:
    """Run a demo in `out/NAME-SEED`, and write what it printed and its times beside it, unless that was done before."""
    folder = out / f"{name}-{seed}"
    record = folder.with_suffix(".json")
    if record.exists():
        return
    words = ["demo", name, "--seed", str(seed), "--out", str(folder), "--json"]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen([sys.executable, "-m", "pretrainkit", *words], stdout=subprocess.PIPE, text=True)
    lines = []
    for line in process.stdout or ():
        print(line, end="", flush=True)
        lines.append(line)
    if process.wait():
        raise SystemExit(f"the demo {name} failed with exit code {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    times = {
        "wall_seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
    }
    record.write_text(json.dumps({**times, "output": "".join(lines)}), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(DEMOS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--out", type=Path, default=Path("build/gallery"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names:
        for seed in arguments.seeds:
            run_demo(name, seed, arguments.out)
