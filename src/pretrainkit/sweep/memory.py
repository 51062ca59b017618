"""Free memory, memory usage of runs, and whether another run fits. Imports no torch.

Numbers come from Linux and from NVIDIA's driver; on other systems they are None. The usage of a run is estimated from
earlier runs: no other run starts until the first run has ended, or a fixed time has passed. Then another run may start
if all runs would still fit with the largest usage so far.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_KIB, _MIB, _GB = 1 << 10, 1 << 20, 1e9
ALONE_SECONDS = 120.0
"""Time until other runs may start beside the first: enough to read the data, train and evaluate unless the data is
large. Usage measured later still counts for runs that start later."""
_SPARE = 1.1
"""A new run is assumed to need this many times the largest usage so far."""
_GROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Maps the name of the controller (empty in version 2) to the files with the limit and the usage, and the entry of
`memory.stat` for cached files, which the system drops when memory is needed."""


class Usage(NamedTuple):
    """Memory in bytes of a run: its process and all processes it started."""

    now: int
    peak: int
    """The sum of the peaks of the processes that still run."""


@dataclass(frozen=True)
class Machine:
    """The machine this process runs on."""

    gpu: str | None = None
    """The GPU of the runs, as an id for nvidia-smi; None if they use no GPU."""
    proc: Path = Path("/proc")
    groups: Path = Path("/sys/fs/cgroup")

    def free_bytes(self) -> int | None:
        """Return the bytes that processes may still take without swapping, within this process's control groups."""
        fields = dict(line.split(":", 1) for line in _lines(self.proc / "meminfo"))
        if not fields:
            return None
        available = int(fields["MemAvailable"].split()[0]) * _KIB
        return min([available, *self._left_in_groups()])

    def usage(self, pid: int) -> Usage:
        """Return the memory usage of a process and its children; 0 if the process has ended."""
        now = peak = 0
        for process in self._tree(pid):
            fields = dict(line.split(":", 1) for line in _lines(self.proc / str(process) / "status"))
            now += int(fields.get("VmRSS", "0").split()[0]) * _KIB
            peak += int(fields.get("VmHWM", "0").split()[0]) * _KIB
        return Usage(now, peak)

    def free_gpu_bytes(self) -> int | None:
        """Return the free bytes of the GPU of the runs; None without a GPU or an answer of its driver."""
        program = shutil.which("nvidia-smi") if self.gpu is not None else None
        if program is None:
            return None
        query = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"]
        reply = subprocess.run([program, "-i", str(self.gpu), *query], capture_output=True, text=True, check=False)
        mebibytes = reply.stdout.strip()
        return int(mebibytes) * _MIB if mebibytes.isdecimal() else None

    def _left_in_groups(self) -> Iterator[int]:
        for line in _lines(self.proc / "self" / "cgroup"):
            _, controllers, path = line.split(":", 2)
            for name in {"", "memory"} & set(controllers.split(",")):
                root, (limit, used, cached) = self.groups / name, _GROUP_FILES[name]
                folders = [root / path.strip("/"), *(root / path.strip("/")).parents]
                # A limit also applies to all groups below. In a container, the path of its group may not exist; its
                # limit is then that of the root.
                for folder in folders[: folders.index(root) + 1]:
                    words, taken = _lines(folder / limit), _lines(folder / used)
                    entries = dict(entry.split() for entry in _lines(folder / "memory.stat"))
                    if words and taken and entries and words[0] != "max":
                        yield max(0, int(words[0]) - int(taken[0]) + int(entries.get(cached, 0)))

    def _tree(self, pid: int) -> Iterator[int]:
        yield pid
        for tasks in (self.proc / str(pid) / "task").glob("*/children"):
            for child in " ".join(_lines(tasks)).split():
                yield from self._tree(int(child))


def _lines(path: Path) -> list[str]:
    """Return the lines of a file; none if the file does not exist, for example because its process ended."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def gpu_of(device: str | None) -> str | None:
    """Return the GPU of `--device` as an id for nvidia-smi, or None if it is not an NVIDIA GPU. The number in
    `--device` is an index into CUDA_VISIBLE_DEVICES."""
    if device is not None and device.split(":")[0] != "cuda":
        return None
    number = int(device.split(":")[1]) if device is not None and ":" in device else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(number)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return names[number] if number < len(names) and names[number] != "-1" else None


class MemoryBudget:
    """Decides whether another run of a sweep fits into memory."""

    def __init__(
        self, machine: Machine, say: Callable[[str], None], num_jobs: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Call `say` once if fewer than `num_jobs` runs fit at a time; `clock` returns seconds."""
        self._machine, self._say, self._num_jobs, self._clock = machine, say, num_jobs, clock
        self._largest = self._largest_on_gpu = 0
        self._gpu_bytes: int | None = None
        self._num_ended = 0
        self._began: float | None = None
        self._num_refused_at = 0
        self._has_reported = False

    def begin(self) -> None:
        if self._began is None:
            self._began = self._clock()
            # The driver reports all processes together: the memory that is free before the first run is for all runs.
            self._gpu_bytes = self._machine.free_gpu_bytes()

    def end(self) -> None:
        self._num_ended += 1

    def measure(self, pids: Sequence[int]) -> None:
        """Update the largest usage from the runs of these processes."""
        self._largest = max([self._largest, *(self._machine.usage(pid).peak for pid in pids)])
        if not self._is_learned and self._gpu_bytes is not None:
            free = self._machine.free_gpu_bytes()
            if free is not None:
                self._largest_on_gpu = max(self._largest_on_gpu, self._gpu_bytes - free)

    def fits(self, pids: Sequence[int], num_running: int) -> bool:
        """True if another run fits beside `num_running` runs, of which `pids` already have a process. A run may always
        start when no other is running."""
        if not num_running:
            return True
        if not self._is_learned:
            return False
        # All runs together may use the free memory and the memory that they already have.
        free_bytes, taken = self._machine.free_bytes(), sum(self._machine.usage(pid).now for pid in pids)
        for kind, free, need in (
            ("memory", None if free_bytes is None else free_bytes + taken, self._largest * _SPARE),
            ("GPU memory", self._gpu_bytes, self._largest_on_gpu * _SPARE),
        ):
            if free is not None and need * (num_running + 1) > free:
                # A first refusal may be due to a run that has just begun and has no process yet; report the second.
                is_lasting, self._num_refused_at = self._num_refused_at == num_running, num_running
                if is_lasting and not self._has_reported:
                    self._has_reported = True
                    self._say(
                        f"{num_running} of {self._num_jobs} runs at a time: each may need {need / _GB:.2f} GB of "
                        f"{kind}, and {free / _GB:.2f} GB are available for all runs"
                    )
                return False
        return True

    @property
    def _is_learned(self) -> bool:
        return self._num_ended > 0 or (self._began is not None and self._clock() - self._began >= ALONE_SECONDS)
