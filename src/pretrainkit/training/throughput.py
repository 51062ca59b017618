"""How fast a run goes, counted in real work: padding is never work.

MFU divides the matmul FLOPs of the real tokens (forward and backward = 3 x forward, nothing recomputed) by what the
device could do at its datasheet rate for dense matrices. A device that is not in the table has no MFU: a wrong peak is
worse.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pretrainkit.dist.devices import device_name
from pretrainkit.dist.env import World
from pretrainkit.training.objective import Cost
from pretrainkit.training.precision import Precision

_PEAKS: tuple[tuple[str, float, float | None, float], ...] = (
    ("GB300", 2500e12, 1250e12, 80e12),
    ("B300", 2250e12, 1100e12, 75e12),
    ("GB200", 2500e12, 1250e12, 80e12),
    ("B200", 2250e12, 1100e12, 75e12),
    ("H200", 989.5e12, 494.7e12, 66.9e12),
    ("H200 NVL", 835.5e12, 417.7e12, 60e12),
    ("GH200", 989.5e12, 494.7e12, 66.9e12),
    ("H100", 989.5e12, 494.7e12, 66.9e12),
    ("H100 PCIe", 756e12, 378e12, 51.2e12),
    ("H100 NVL", 835.5e12, 417.7e12, 60e12),
    ("H800", 989.5e12, 494.7e12, 66.9e12),
    ("H20", 148e12, 74e12, 44e12),
    ("A100", 312e12, 156e12, 19.5e12),
    ("A800", 312e12, 156e12, 19.5e12),
    ("A40", 149.7e12, 74.8e12, 37.4e12),
    ("A30", 165e12, 82e12, 10.3e12),
    ("A10", 125e12, 62.5e12, 31.2e12),
    ("L40S", 362e12, 183e12, 91.6e12),
    ("L40", 181e12, 90.5e12, 90.5e12),
    ("L4", 121e12, 60e12, 30.3e12),
    ("RTX 5090", 209.5e12, 104.8e12, 104.8e12),
    ("RTX 5080", 112.6e12, 56.3e12, 56.3e12),
    ("RTX 4090", 165.2e12, 82.6e12, 82.6e12),
    ("RTX 4090 D", 147.1e12, 73.5e12, 73.5e12),
    ("RTX 4080", 97.5e12, 48.7e12, 48.7e12),
    ("RTX 3090", 71e12, 35.6e12, 35.6e12),
    ("RTX 3090 Ti", 80e12, 40e12, 40e12),
    ("RTX 3080", 59.5e12, 29.8e12, 29.8e12),
    ("RTX A6000", 154.8e12, 77.4e12, 38.7e12),
    ("RTX 6000 Ada", 364.2e12, 182.1e12, 91.1e12),
    ("V100 SXM2", 125e12, None, 15.7e12),
    ("V100 PCIE", 112e12, None, 14e12),
    ("V100S PCIE", 130e12, None, 16.4e12),
    ("T4", 65e12, None, 8.1e12),
)
"""Words of the device's name, then dense FLOP/s: float16 (and bfloat16) with sums in float32; TF32, None for devices
that have neither TF32 nor bfloat16; float32. Datasheets print twice the first two "with sparsity". Of several rows that
fit, the one with the most words counts. Rates of GeForce cards are of NVIDIA's whitepapers of GA102, Ada, Blackwell."""
_OTHERWISE = frozenset({"MIG", "Laptop", "Max", "Ti", "SUPER", "D"})
"""Words that make another device of it: one that has them is not in a row without."""


def peak_flops(device_name: str, precision_name: str) -> float | None:
    """Datasheet FLOP/s of one device, dense, in a format as `Precision.name` has it; None where it is not known. Of the
    device's name, such as `NVIDIA A100-SXM4-80GB`, whole words count: an A10 is no A100."""
    words = frozenset(re.split(r"[\s-]+", device_name))
    keys = {frozenset(row[0].split()): row for row in _PEAKS}
    fitting = [key for key in keys if key <= words and words & _OTHERWISE <= key]
    if not fitting:
        return None
    _, half, tf32, single = keys[max(fitting, key=len)]
    rates = {"bfloat16": tf32 and half, "float16": half, "tf32": tf32, "float32": single}
    return rates.get(precision_name)


@dataclass(frozen=True)
class Peak:
    """The denominator of MFU: what it is called and how much it is, for one rank."""

    device_name: str
    precision_name: str
    flops_per_second: float | None

    @classmethod
    def of(cls, precision: Precision) -> "Peak":
        """Of the device and format a run computes with. A CPU has no datasheet rate."""
        name = device_name(precision.device)
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
    """Adds up the work and the time of the steps since it was last read. Evaluation and saving do not count.

    The host may run ahead of an accelerator: the time of many steps is right, that of one is not.
    """

    def __init__(self, world: World, peak: Peak) -> None:
        self._world, self._peak = world, peak
        self._notes: dict[str, int] = {}
        self._notes_before: dict[str, float] = {}
        self._restart()

    def _restart(self) -> None:
        self._num_steps = 0
        self._sums = dict.fromkeys(("examples", "tokens", "slots", "flops", "computing", "waiting"), 0.0)

    def add(self, cost: Cost) -> None:
        """Count the work of one microbatch of this rank."""
        for name in ("examples", "tokens", "slots", "flops"):
            self._sums[name] += getattr(cost, name)
        for name, count in cost.notes.items():
            self._notes[name] = self._notes.get(name, 0) + count

    def time(self, step_seconds: float, wait_seconds: float) -> None:
        """Count one step: how long this rank computed, and how long before that it waited for data."""
        self._num_steps += 1
        self._sums["computing"] += step_seconds
        self._sums["waiting"] += wait_seconds

    def metrics(self) -> dict[str, float]:
        """The rates over all ranks since the last call, and start anew. Empty without a step.

        A collective: all ranks call it after the same steps. Ranks go in lockstep, so their mean time is the run's.
        """
        if not self._num_steps:
            return {}
        mine = torch.tensor([*self._sums.values()], dtype=torch.float64)
        totals = self._world.all_reduce_(mine).tolist()
        examples, tokens, slots, flops, computing, waiting = totals
        # Ranks go in lockstep, so seconds of all ranks over their number are those of the run.
        rank_seconds = max(computing + waiting, 1e-9)
        seconds = rank_seconds / self._world.world_size
        rates = {
            "seconds_per_step": seconds / self._num_steps,
            "examples_per_second": examples / seconds,
            "tokens_per_second": tokens / seconds,
            "padding_share": 1 - tokens / slots if slots else 0.0,
            "data_wait_share": waiting / rank_seconds,
            "flops_per_second": flops / seconds,
        }
        if self._peak.flops_per_second is not None:
            rates["mfu"] = flops / (rank_seconds * self._peak.flops_per_second)
        self._restart()
        return rates | self.notes()

    def notes(self) -> dict[str, float]:
        """Notes of all ranks since the start of the run; every rank gives the same names. A collective."""
        if not self._notes:
            return dict(self._notes_before)
        names = sorted(self._notes)
        mine = torch.tensor([self._notes[name] for name in names], dtype=torch.float64)
        counts = zip(names, self._world.all_reduce_(mine).tolist(), strict=True)
        found = self._notes_before | {name: self._notes_before.get(name, 0.0) + count for name, count in counts}
        return dict(sorted(found.items()))

    def load_notes(self, notes: Mapping[str, float]) -> None:
        """Go on from what `notes` gave in an earlier process of the run."""
        self._notes_before = dict(notes)
