"""Cost of decoupled accumulation: a batch of K microbatches, in which all pairs are contrasted with each other, against
K separate batches of one microbatch.

    python benchmarks/accumulation.py [--num-microbatches 16] [--microbatch-size 32] [--rounds 7] [--quick]

Both sides use the towers of clip/tiny, images of 64 x 64, captions of 25 tokens and float32. They run forward pass,
loss and backward pass with `pretrainkit.training.accumulate`, without an optimizer. They alternate within each round.
The results are CPU times: the medians, and the median of the rounds' ratios. All microbatches except one are embedded
twice. So if a backward pass costs two forward passes, the smallest possible ratio is 1 + (K - 1) / K / 3.

Memory is measured in new processes: the maximum resident size (Linux, VmHWM) during a step after some warm-up, minus
the resident size before it. The other column counts only the tensors that autograd keeps for the backward pass, at
their maximum.
"""

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pretrainkit.recipes.clip.config import ClipRun, TextTransformerConfig
from pretrainkit.recipes.clip.objective import ClipObjective
from pretrainkit.recipes.clip.presets import PRESETS
from pretrainkit.training.accumulate import accumulate
from pretrainkit.training.precision import Precision

FLOAT32 = Precision(device=torch.device("cpu"), compute_dtype=torch.float32, uses_tf32=False, scaler=None)
VOCAB_SIZE, NUM_TOKENS, IMAGE_SIZE = 8000, 25, 64
SMALL_BLOCKS_RETURN = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Makes glibc return freed memory at once, so that the resident size is the memory in use."""


def make(microbatch_size: int, num_microbatches: int) -> tuple[ClipObjective, nn.Module, list[dict[str, Tensor]]]:
    """Return the objective, the model of clip/tiny in training mode, and microbatches of noise."""
    from pretrainkit.recipes.clip.model import DualEncoder

    config: ClipRun = PRESETS["tiny"]()
    text = config.model.text
    assert isinstance(text, TextTransformerConfig)
    text = text.model_copy(update={"vocab_size": VOCAB_SIZE})
    config = config.model_copy(update={"model": config.model.model_copy(update={"text": text})})
    torch.manual_seed(0)
    model = DualEncoder(config).train()
    rng = np.random.default_rng(0)
    batches = [
        {
            "image": torch.from_numpy(
                rng.integers(0, 256, (microbatch_size, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=np.uint8)
            ),
            "input_ids": torch.from_numpy(rng.integers(0, VOCAB_SIZE, (microbatch_size, NUM_TOKENS), dtype=np.int32)),
            "num_tokens": torch.full((microbatch_size,), NUM_TOKENS, dtype=torch.int32),
        }
        for _ in range(num_microbatches)
    ]
    return ClipObjective(config), model, batches


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def compare_times(microbatch_size: int, num_microbatches: int, rounds: int) -> tuple[float, float, float]:
    """Return the median CPU seconds of K batches of one microbatch, those of one batch of K, and the median ratio."""
    objective, model, batches = make(microbatch_size, num_microbatches)

    def separate() -> None:
        for batch in batches:
            accumulate(objective, model, [batch], precision=FLOAT32)

    def together() -> None:
        accumulate(objective, model, batches, precision=FLOAT32)

    times: tuple[list[float], list[float]] = ([], [])
    for number in range(-1, rounds):
        for seconds, work in zip(times, (separate, together), strict=True):
            model.zero_grad(set_to_none=True)
            spent = cpu_seconds(work)
            if number >= 0:
                seconds.append(spent)
    ratio = statistics.median(many / few for few, many in zip(*times, strict=True))
    return statistics.median(times[0]), statistics.median(times[1]), ratio


class KeptBytes:
    """Counts the bytes that autograd keeps for the backward pass: now, and at most. A tensor is counted only once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._uses: dict[int, int] = {}

    def pack(self, tensor: Tensor) -> "Kept":
        return Kept(self, tensor)

    def add(self, storage: torch.UntypedStorage, sign: int) -> None:
        key = storage.data_ptr()
        uses = self._uses.get(key, 0) + sign
        if (sign > 0 and uses == 1) or (sign < 0 and uses == 0):
            self.now += sign * storage.nbytes()
        self._uses[key] = uses
        self.most = max(self.most, self.now)


class Kept:
    """A tensor that is kept for the backward pass. It is counted while this object exists."""

    def __init__(self, count: KeptBytes, tensor: Tensor) -> None:
        self._count, self.tensor = count, tensor
        count.add(tensor.untyped_storage(), 1)

    def __del__(self) -> None:
        self._count.add(self.tensor.untyped_storage(), -1)


def status_kilobytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise SystemExit(f"/proc/self/status has no {name}")


def measure_memory(microbatch_size: int, num_microbatches: int) -> None:
    """Print the growth of the resident size in MB during a step, and the MB kept for the backward pass."""
    objective, model, batches = make(microbatch_size, num_microbatches)
    accumulate(objective, model, batches[:2], precision=FLOAT32)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # reset VmHWM
    before = status_kilobytes("VmRSS")
    accumulate(objective, model, batches, precision=FLOAT32)
    grown = status_kilobytes("VmHWM") - before
    count = KeptBytes()
    with torch.autograd.graph.saved_tensors_hooks(count.pack, lambda kept: kept.tensor):
        accumulate(objective, model, batches, precision=FLOAT32)
    print(grown / 1e3, count.most / 1e6)


def memory_of(microbatch_size: int, num_microbatches: int) -> tuple[float, float]:
    """Run `measure_memory` in a new process."""
    command = [sys.executable, __file__, "--memory", str(microbatch_size), str(num_microbatches)]
    done = subprocess.run(
        command, env=os.environ | SMALL_BLOCKS_RETURN, capture_output=True, text=True, check=True, timeout=300
    )
    grown, kept = map(float, done.stdout.split())
    return grown, kept


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-microbatches", type=int, default=16)
    parser.add_argument("--microbatch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: a test that it runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        return measure_memory(*options.memory)
    if options.quick:
        options.num_microbatches, options.microbatch_size, options.rounds = 4, 16, 1
    size, most = options.microbatch_size, options.num_microbatches
    counts = sorted({2, 4, most})
    print(f"### Time, microbatches of {size} pairs\n")
    print("| microbatches | separate, ms | one batch, ms | ratio | least possible |\n|---|---|---|---|---|")
    for count in counts:
        separate, together, ratio = compare_times(size, count, options.rounds)
        floor = 1 + (count - 1) / count / 3
        print(
            f"| {count} | {1e3 * separate:.0f} | {1e3 * together:.0f} | {ratio:.3f} | {floor:.3f} |",
            flush=True,
        )
    print(f"\n### Memory of a step, microbatches of {size} pairs\n")
    print("| microbatches | resident, MB | resident, to one microbatch | kept, MB | kept, to one microbatch |")
    print("|---|---|---|---|---|")
    alone = memory_of(size, 1)
    for count in [1, *counts]:
        grown, kept = memory_of(size, count) if count > 1 else alone
        print(f"| {count} | {grown:.1f} | {grown / alone[0]:.3f} | {kept:.1f} | {kept / alone[1]:.3f} |", flush=True)
    return None


if __name__ == "__main__":
    main()
