"""`python benchmarks/gpu_estimate.py [NAME...]`: MFU of the workloads of gpu.py on one H200, on paper.

A step is taken to last as long as its products, its attention kernels and the memory traffic of its other kernels,
one after another: operations are counted by torch, bytes are those that Inductor writes into each Triton kernel it
makes for the card (`tests/support/codegen.py`; needs the package triton, as `make test-codegen` installs it), and the
optimizer's are 32 for each number of the model. Not counted: embeddings and what else lies between blocks, launches and
data; a real run can only be slower. Prints a Markdown table.
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
"""bfloat16, of the datasheet: what MFU is a share of."""
PRODUCTS, ATTENTION, BANDWIDTH = 650e12, 250e12, 4.0e12
"""Assumed: operations a second of products 768 wide and of flash attention, and bytes a second. A product of 8192^3
reached 785e12 on an H200; the datasheet has 4.8e12 bytes."""
OPTIMIZER_BYTES = 32
"""For each number: its gradient for the norm; weight, gradient and two moments read; weight and moments written."""
WORKLOADS = {
    "bert-base": "bert/base=512",
    "bert-base, no dropout": "bert/base=512,model.attention_dropout=0,model.hidden_dropout=0",
    "bert-large": "bert/large=256",
    "t5-base": "t5/1.1-base=128",
    "pixel-base": "pixel/base=64",
    "zerovl": "clip/zerovl=512",
    "fourm-b": "fourm/b-7=256",
}


def estimate(found: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds of a step's parts, and MFU."""
    moved = sum(
        part["count"] * num_bytes
        for part in found["parts"].values()
        for direction in part.keys() - {"count"}
        for kernel, num_bytes in part[direction]["kernels"].items()
        if not kernel.startswith("triton_tem")  # FlexAttention, which is counted by its operations
    )
    seconds = {
        "products": found["products"] / PRODUCTS,
        "attention": found["attention"] / ATTENTION,
        "other kernels": moved / BANDWIDTH,
        "optimizer": OPTIMIZER_BYTES * found["parameters"] / BANDWIDTH,
    }
    total = sum(seconds.values())
    return {name: 1e3 * value for name, value in seconds.items()} | {"MFU": found["cost"] / (total * PEAK)}


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
        (found,) = json.loads(done.stdout).values()
        found = estimate(found)
        share = found.pop("MFU")
        if not number:
            print(f"| workload | preset and examples | {', ms | '.join(found)}, ms | MFU |")
            print("|---" * (len(found) + 3) + "|")
        preset = WORKLOADS[name].partition(",")[0]
        print(f"| {name} | {preset} | {' | '.join(f'{one:.1f}' for one in found.values())} | {share:.2f} |", flush=True)


if __name__ == "__main__":
    main()
