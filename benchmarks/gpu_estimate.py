"""`python benchmarks/gpu_estimate.py [NAME...]`: estimate the MFU of the workloads of gpu.py on one H200.

The assumed time of a step is the sum of the times of its matrix products, its attention kernels and the memory traffic
of its other kernels. torch counts the operations. The bytes are those that Inductor notes in each Triton kernel that it
generates for the GPU (`tests/support/codegen.py`; needs the package triton, which `make test-codegen` installs). The
optimizer moves 32 bytes per parameter. Not counted are embeddings and other work between blocks, kernel launches and
data, so a real run can only be slower. Prints a Markdown table.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEAK = 989.5e12
"""FLOP/s of bfloat16 in the datasheet. MFU is the share of this."""
PRODUCTS, ATTENTION, BANDWIDTH = 650e12, 250e12, 4.0e12
"""Assumed operations per second of products of width 768 and of flash attention, and bytes per second. A product of
8192^3 reached 785e12 on an H200; the datasheet has 4.8e12 bytes per second."""
OPTIMIZER_BYTES = 32
"""Bytes per parameter: gradient for the norm; weight, gradient and two moments read; weight and moments written."""
WORKLOADS = {
    "bert-base": "bert/base=512",
    "bert-base, no dropout": "bert/base=512,model.attention_dropout=0,model.hidden_dropout=0",
    "bert-large": "bert/large=256",
    "t5-base": "t5/1.1-base=128",
    "pixel-base": "pixel/base=64",
    "zerovl": "clip/zerovl=512",
    "fourm-b": "fourm/b-7=256",
}


def estimate(counts: Mapping[str, Any]) -> dict[str, float]:
    """Return the milliseconds of a step's parts, and the MFU."""
    moved = sum(
        part["count"] * num_bytes
        for part in counts["parts"].values()
        for direction in part.keys() - {"count"}
        for kernel, num_bytes in part[direction]["kernels"].items()
        if not kernel.startswith("triton_tem")  # FlexAttention, which is counted by its operations
    )
    seconds = {
        "products": counts["products"] / PRODUCTS,
        "attention": counts["attention"] / ATTENTION,
        "other kernels": moved / BANDWIDTH,
        "optimizer": OPTIMIZER_BYTES * counts["parameters"] / BANDWIDTH,
    }
    total = sum(seconds.values())
    return {name: 1e3 * value for name, value in seconds.items()} | {"MFU": counts["cost"] / (total * PEAK)}


def main() -> None:
    """Print a row for each workload."""
    for number, name in enumerate(sys.argv[1:] or WORKLOADS):
        done = subprocess.run(
            [sys.executable, "-m", "support.codegen", WORKLOADS[name]],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")))},
        )
        if done.returncode:
            sys.exit(f"{name}: {done.stderr[-2000:]}")
        (counts,) = json.loads(done.stdout).values()
        parts = estimate(counts)
        share = parts.pop("MFU")
        if not number:
            print(f"| workload | preset and examples | {', ms | '.join(parts)}, ms | MFU |")
            print("|---" * (len(parts) + 3) + "|")
        preset = WORKLOADS[name].partition(",")[0]
        print(f"| {name} | {preset} | {' | '.join(f'{ms:.1f}' for ms in parts.values())} | {share:.3f} |", flush=True)


if __name__ == "__main__":
    main()
