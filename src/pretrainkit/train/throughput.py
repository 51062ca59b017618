"""How fast a run goes, counted in real work: padding is never work.

MFU divides the matmul FLOPs of the real tokens (forward and backward = 3 x forward, nothing recomputed) by what the
device could do at its datasheet rate for dense matrices. A device that is not in the table has no MFU: a wrong peak is
worse.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pretrainkit.train.objective import Cost
from pretrainkit.train.precision import Precision
from pretrainkit.train.ranks import Ranks

_HALF = ("bfloat16", "float16")
_PEAKS: tuple[tuple[frozenset[str], dict[str, float]], ...] = tuple(
    (frozenset(words.split()), dict.fromkeys(_HALF, half) | {"tf32": tf32, "float32": single})
    for words, half, tf32, single in (
        # Words of the device's name, then dense FLOP/s: bfloat16 and float16, TF32, float32. Datasheets print twice the
        # first two "with sparsity". Of several rows that fit, the one with the most words counts.
        ("B200", 2250e12, 1100e12, 75e12),
        ("H200", 989.5e12, 494.7e12, 66.9e12),
        ("H200 NVL", 835.5e12, 417.7e12, 60e12),
        ("GH200", 989.5e12, 494.7e12, 66.9e12),
        ("H100", 989.5e12, 494.7e12, 66.9e12),
        ("H100 PCIe", 756e12, 378e12, 51.2e12),
        ("H100 NVL", 835.5e12, 417.7e12, 60e12),
        ("H800", 989.5e12, 494.7e12, 66.9e12),
        ("A100", 312e12, 156e12, 19.5e12),
        ("A800", 312e12, 156e12, 19.5e12),
        ("A40", 149.7e12, 74.8e12, 37.4e12),
        ("A30", 165e12, 82e12, 10.3e12),
        ("A10", 125e12, 62.5e12, 31.2e12),
        ("L40S", 362e12, 183e12, 91.6e12),
        ("L40", 181e12, 90.5e12, 90.5e12),
        ("L4", 121e12, 60e12, 30.3e12),
    )
)


def peak_flops(device_name: str, precision_name: str) -> float | None:
    """Datasheet FLOP/s of one device, dense, or None where it is not known.

    Args:
        device_name: As `torch.cuda.get_device_name` gives it, such as `NVIDIA A100-SXM4-80GB`. Whole words count: an
            A10 is no A100.
        precision_name: `Precision.name`.
    """
    words = frozenset(re.split(r"[\s-]+", device_name))
    if "MIG" in words:
        return None
    fitting = [(len(key), peaks) for key, peaks in _PEAKS if key <= words]
    return max(fitting, key=lambda row: row[0])[1].get(precision_name) if fitting else None


@dataclass(frozen=True)
class Peak:
    """The denominator of MFU: what it is called and how much it is, for one rank."""

    device_name: str
    precision_name: str
    flops_per_second: float | None

    @classmethod
    def of(cls, precision: Precision) -> "Peak":
        """Of the device and format a run computes with. A CPU has no datasheet rate."""
        name = torch.cuda.get_device_name(precision.device) if precision.device.type == "cuda" else "CPU"
        return cls(name, precision.name, peak_flops(name, precision.name))

    def describe(self) -> str:
        """One line for the log and the report, to be printed with every MFU."""
        if self.flops_per_second is None:
            return f"no MFU: the peak rate of {self.device_name} in {self.precision_name} is not known"
        return (
            "MFU = matmul FLOPs of real tokens (3 x forward, nothing recomputed) / (seconds x ranks x "
            f"{self.flops_per_second / 1e12:g}e12 FLOP/s): {self.device_name}, dense {self.precision_name}, datasheet"
        )


class Throughput:
    """Adds up the work between two log steps.

    On an accelerator the host runs ahead of the device: call `take` right after something waited for the device (the
    log step's fetch of metrics), so that the seconds are the device's too.
    """

    def __init__(self, peak: Peak, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._peak = peak
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Forget what was counted; call it after pauses that are not training (evaluation, saving)."""
        self._began = self._clock()
        self._num_steps = 0
        self._wait_seconds = 0.0
        self._examples = self._tokens = self._slots = 0
        self._flops = 0.0

    def add(self, costs: list[Cost], wait_seconds: float) -> None:
        """Count one step of this rank: the cost of each of its microbatches, and how long it waited for data."""
        self._num_steps += 1
        self._wait_seconds += wait_seconds
        for cost in costs:
            self._examples += cost.examples
            self._tokens += cost.tokens
            self._slots += cost.slots
            self._flops += cost.flops

    def take(self, ranks: Ranks | None = None, device: torch.device | None = None) -> dict[str, float]:
        """The rates since the last `take` or `restart`, over all ranks, and start anew. Empty without a step.

        Args:
            ranks: A collective where there is more than one; all ranks call it at the same step.
            device: Where that collective runs (NCCL cannot add up on the host).
        """
        if not self._num_steps:
            self.restart()
            return {}
        seconds = max(self._clock() - self._began, 1e-9)
        counts = [self._examples, self._tokens, self._slots, self._flops, self._wait_seconds, seconds]
        count = 1
        if ranks is not None and ranks.count > 1:
            count = ranks.count
            counts = ranks.sum(torch.tensor(counts, dtype=torch.float64, device=device)).tolist()
        examples, tokens, slots, flops, waited, all_seconds = counts
        rates = {
            "seconds_per_step": seconds / self._num_steps,
            "examples_per_second": examples / seconds,
            "tokens_per_second": tokens / seconds,
            "padding_share": 1 - tokens / slots if slots else 0.0,
            "data_wait_share": min(waited / all_seconds, 1.0),
            "flops_per_second": flops / seconds,
        }
        if self._peak.flops_per_second is not None:
            rates["mfu"] = flops / (seconds * count * self._peak.flops_per_second)
        self.restart()
        return rates
