"""Speed of a run, measured in real work: padding does not count.

MFU divides the FLOPs of matrix products of the real tokens (forward and backward = 3 x forward, nothing recomputed) by
what the device could do at its datasheet rate for dense matrices. A device that is not in the table has no MFU, because
a wrong peak would be worse.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pretrainkit.dist.devices import Utilization, device_name, memory_in_use
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
"""Words of the device's name, then dense FLOP/s in float16 (and bfloat16) with sums in float32; in TF32, None for
devices that have neither TF32 nor bfloat16; in float32.

Datasheets print twice the first two rates "with sparsity". If several rows match, the one with the most words is used.
Rates of GeForce cards come from NVIDIA's whitepapers on GA102, Ada and Blackwell."""
_OTHERWISE = frozenset({"MIG", "Laptop", "Max", "Ti", "SUPER", "D"})
"""Words that mark a different device: a name with one of them does not match a row without it."""


def peak_flops(device_name: str, precision_name: str) -> float | None:
    """Return the dense datasheet FLOP/s of one device in a format as in `Precision.name`; None if unknown. Only whole
    words of the device's name, such as `NVIDIA A100-SXM4-80GB`, are compared: an A10 is not an A100."""
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
    """The denominator of MFU for one rank, with its description."""

    device_name: str
    precision_name: str
    flops_per_second: float | None

    @classmethod
    def of(cls, precision: Precision) -> "Peak":
        """Return the peak of the device and format that a run computes with. A CPU has no datasheet rate."""
        name = device_name(precision.device)
        return cls(name, precision.name, peak_flops(name, precision.name))

    def describe(self) -> str:
        """Return one line for the log and the report, printed with every MFU."""
        if self.flops_per_second is None:
            return f"no MFU: the peak rate of {self.device_name} in {self.precision_name} is unknown"
        return (
            "MFU = matmul FLOPs of real tokens (3 x forward, nothing recomputed) / (seconds x ranks x "
            f"{self.flops_per_second / 1e12:g}e12 FLOP/s): {self.device_name}, dense {self.precision_name}, datasheet"
        )


class Throughput:
    """Adds up the work and time of the steps since the last call of `metrics`. Evaluation and saving do not count.

    The host may run ahead of an accelerator, so the time of many steps is accurate, but that of one step is not.
    """

    def __init__(self, world: World, peak: Peak) -> None:
        self._world, self._peak = world, peak
        self._utilization = Utilization(world.device)
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
        """Count one step: the time this rank computed, and the time it waited for data before that."""
        self._num_steps += 1
        self._sums["computing"] += step_seconds
        self._sums["waiting"] += wait_seconds

    def metrics(self) -> dict[str, float]:
        """Return the rates over all ranks since the last call, and reset them. Empty without a step.

        A collective: all ranks call it after the same steps. Ranks run in lockstep, so their mean time is that of the
        run.
        """
        if not self._num_steps:
            return {}
        mine = torch.tensor([*self._sums.values()], dtype=torch.float64)
        totals = self._world.all_reduce_(mine).tolist()
        examples, tokens, slots, flops, computing, waiting = totals
        # Ranks run in lockstep, so the seconds of all ranks divided by their number are those of the run.
        rank_seconds = max(computing + waiting, 1e-9)
        seconds = rank_seconds / self._world.world_size
        rates = {
            "seconds_per_step": seconds / self._num_steps,
            "examples_per_second": examples / seconds,
            "tokens_per_second": tokens / seconds,
            "padding_share": 1 - tokens / slots if slots else 0.0,
            "data_wait_share": waiting / rank_seconds,
        }
        if flops:  # 0: not counted
            rates["flops_per_second"] = flops / seconds
            if self._peak.flops_per_second is not None:
                rates["mfu"] = flops / (rank_seconds * self._peak.flops_per_second)
        rates |= self._device_use()
        self._restart()
        return rates | self.notes()

    def _device_use(self) -> dict[str, float]:
        """Return memory in GiB and utilization of the device, each of the rank with the most. What the system does not
        report is missing."""
        memory, busy = memory_in_use(self._world.device), self._utilization.read()
        unknown = -1.0
        now, peak, most = self._world.max(*(memory or (unknown, unknown)), unknown if busy is None else busy)
        known = {"memory_gib": now / 2**30, "memory_peak_gib": peak / 2**30, "utilization_share": most}
        return {name: value for name, value in known.items() if value >= 0}

    def notes(self) -> dict[str, float]:
        """Return the notes of all ranks since the start of the run. All ranks must call it, with the same names of
        notes."""
        if not self._notes:
            return dict(self._notes_before)
        names = sorted(self._notes)
        mine = torch.tensor([self._notes[name] for name in names], dtype=torch.float64)
        counts = zip(names, self._world.all_reduce_(mine).tolist(), strict=True)
        notes = self._notes_before | {name: self._notes_before.get(name, 0.0) + count for name, count in counts}
        return dict(sorted(notes.items()))

    def load_notes(self, notes: Mapping[str, float]) -> None:
        """Continue from the result of `notes` in an earlier process of the run."""
        self._notes_before = dict(notes)
