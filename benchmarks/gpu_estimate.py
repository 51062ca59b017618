"""`python benchmarks/gpu_estimate.py [NAME...]`: estimate the MFU of the workloads of gpu.py on one H200.

The assumed time of a step is the sum of the times of its matrix products, its attention kernels and the memory traffic
of its other kernels. torch counts the operations. The bytes are those that Inductor notes in each Triton kernel that it
generates for the GPU (`tests/support/codegen.py`; needs the package triton, which `make test-codegen` installs). The
optimizer moves 32 bytes per parameter (AdamW) or 64 (Adafactor). Not counted are embeddings and other work between
blocks, kernel launches and data, so a real run can only be slower. Prints a Markdown table.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEAK = 989.5e12
"""FLOP/s of bfloat16 in the datasheet. MFU is the share of this."""
PRODUCTS, ATTENTION, BANDWIDTH = 650e12, 250e12, 4.0e12
"""Assumed operations per second of products of width 768 and of flash attention, and bytes per second. A product of
8192^3 reached 785e12 on an H200; the datasheet has 4.8e12 bytes per second."""
ADAMW, ADAFACTOR = 32, 64
"""Bytes per parameter. Both read the gradient for its norm. AdamW reads weight, gradient and two moments, and writes
weight and moments. Adafactor copies the gradient, takes norms of rows and columns, writes the product of their roots,
multiplies it with the gradient, takes two norms, scales and subtracts: 15 numbers are read or written."""
WORKLOADS = {
    "bert-base": ("bert/base=512", ADAMW),
    "bert-base, no dropout": ("bert/base=512,model.attention_dropout=0,model.hidden_dropout=0", ADAMW),
    "bert-large": ("bert/large=256", ADAMW),
    "t5-base": ("t5/1.1-base=128", ADAFACTOR),
    "t5-base, AdamW": ("t5/1.1-base=128", ADAMW),
    "pixel-base": ("pixel/base=64", ADAMW),
    "zerovl": ("clip/zerovl=512", ADAMW),
    "fourm-b": ("fourm/b-7=256", ADAMW),
}
"""Preset with its batch size, and bytes per parameter that the optimizer moves, by name."""


def estimate(counts: Mapping[str, Any], optimizer_bytes: int) -> dict[str, float]:
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
        "optimizer": optimizer_bytes * counts["parameters"] / BANDWIDTH,
    }
    total = sum(seconds.values())
    return {name: 1e3 * value for name, value in seconds.items()} | {"MFU": counts["cost"] / (total * PEAK)}


@cache
def counted(preset: str) -> Mapping[str, Any]:
    """Return what `support.codegen` counts."""
    done = subprocess.run(
        [sys.executable, "-m", "support.codegen", preset],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")))},
    )
    if done.returncode:
        sys.exit(f"{preset}: {done.stderr[-2000:]}")
    (counts,) = json.loads(done.stdout).values()
    return counts


def main() -> None:
    """Print a row for each workload."""
    for number, name in enumerate(sys.argv[1:] or WORKLOADS):
        preset, optimizer_bytes = WORKLOADS[name]
        parts = estimate(counted(preset), optimizer_bytes)
        share = parts.pop("MFU")
        if not number:
            print(f"| workload | preset and examples | {', ms | '.join(parts)}, ms | MFU |")
            print("|---" * (len(parts) + 3) + "|")
        cells = " | ".join(f"{ms:.1f}" for ms in parts.values())
        print(f"| {name} | {preset.partition(',')[0]} | {cells} | {share:.3f} |", flush=True)


if __name__ == "__main__":
    main()
