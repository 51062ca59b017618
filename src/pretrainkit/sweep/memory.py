"""Free memory, memory that runs take, and room for one more. Torch-free.

Numbers are Linux's own accounts, and those of NVIDIA's driver; elsewhere nothing is known, which is said as None.
What a run takes is learned from those before: the first runs alone until it ends, or for a while. Then a run may start
while all that run would still fit if each took as much as the largest so far.
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
"""So long a first run runs alone. Reading the data, updates and an evaluation lie within it but for large data; what
a run takes later still counts for those that start later."""
_SPARE = 1.1
"""A run may take this many times what the largest so far took."""
_GROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By the name of the controller (none in version 2): the limit, what is used, and the entry of `memory.stat` for files
that are cached, which the system drops when memory is asked for."""


class Usage(NamedTuple):
    """Memory of a run, its process and all that it started, in bytes."""

    now: int
    peak: int
    """The sum of the peaks of the processes that still run."""


@dataclass(frozen=True)
class Machine:
    """The machine this process runs on."""

    gpu: str | None = None
    """The GPU that runs use, as nvidia-smi names it; None: none."""
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
        """0 where the process has ended."""
        now = peak = 0
        for one in self._tree(pid):
            fields = dict(line.split(":", 1) for line in _lines(self.proc / str(one) / "status"))
            now += int(fields.get("VmRSS", "0").split()[0]) * _KIB
            peak += int(fields.get("VmHWM", "0").split()[0]) * _KIB
        return Usage(now, peak)

    def free_gpu_bytes(self) -> int | None:
        """Free bytes of the GPU of the runs; None: there is none, or its driver does not say."""
        program = shutil.which("nvidia-smi") if self.gpu is not None else None
        if program is None:
            return None
        query = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"]
        said = subprocess.run([program, "-i", str(self.gpu), *query], capture_output=True, text=True, check=False)
        word = said.stdout.strip()
        return int(word) * _MIB if word.isdecimal() else None

    def _left_in_groups(self) -> Iterator[int]:
        for line in _lines(self.proc / "self" / "cgroup"):
            _, controllers, path = line.split(":", 2)
            for name in {"", "memory"} & set(controllers.split(",")):
                root, (limit, used, cached) = self.groups / name, _GROUP_FILES[name]
                folders = [root / path.strip("/"), *(root / path.strip("/")).parents]
                # A limit counts for all groups below. A container may not see its own path.
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
    """The lines of a file; none where there is no such file, as of a process that ended."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def gpu_of(device: str | None) -> str | None:
    """The GPU that `--device` means, as nvidia-smi names it; None: no GPU of NVIDIA. What CUDA_VISIBLE_DEVICES leaves
    is numbered anew.
    """
    if device is not None and device.split(":")[0] != "cuda":
        return None
    number = int(device.split(":")[1]) if device is not None and ":" in device else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(number)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return names[number] if number < len(names) and names[number] != "-1" else None


class Room:
    """Room for the runs of a sweep, by what is known about them."""

    def __init__(
        self, machine: Machine, say: Callable[[str], None], num_asked: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`say` is told once when fewer run at a time than `num_asked`; `clock` is in seconds."""
        self._machine, self._say, self._num_asked, self._clock = machine, say, num_asked, clock
        self._largest = self._largest_on_gpu = 0
        self._gpu_bytes: int | None = None
        self._num_ended = 0
        self._began: float | None = None
        self._num_refused_at = 0
        self._has_told = False

    def begin(self) -> None:
        if self._began is None:
            self._began = self._clock()
            # The GPU tells of all its processes together: what is free before the first is what there is for all.
            self._gpu_bytes = self._machine.free_gpu_bytes()

    def end(self) -> None:
        self._num_ended += 1

    def look(self, pids: Sequence[int]) -> None:
        """See what the runs of these processes take."""
        self._largest = max([self._largest, *(self._machine.usage(pid).peak for pid in pids)])
        if not self._is_learned and self._gpu_bytes is not None:
            free = self._machine.free_gpu_bytes()
            if free is not None:
                self._largest_on_gpu = max(self._largest_on_gpu, self._gpu_bytes - free)

    def has(self, pids: Sequence[int], num_running: int) -> bool:
        """True if one more fits beside those, of which `pids` have a process by now. A single one always may run."""
        if not num_running:
            return True
        if not self._is_learned:
            return False
        # What all runs together may take: what is free, and what they have.
        free_bytes, taken = self._machine.free_bytes(), sum(self._machine.usage(pid).now for pid in pids)
        for what, free, need in (
            ("memory", None if free_bytes is None else free_bytes + taken, self._largest * _SPARE),
            ("GPU memory", self._gpu_bytes, self._largest_on_gpu * _SPARE),
        ):
            if free is not None and need * (num_running + 1) > free:
                # Once may be a run that has just begun, which is among `num_running` but not yet among the processes.
                is_lasting, self._num_refused_at = self._num_refused_at == num_running, num_running
                if is_lasting and not self._has_told:
                    self._has_told = True
                    self._say(
                        f"{num_running} of {self._num_asked} runs at a time: each may take {need / _GB:.2f} GB of "
                        f"{what}, and there are {free / _GB:.2f} GB for all"
                    )
                return False
        return True

    @property
    def _is_learned(self) -> bool:
        return self._num_ended > 0 or (self._began is not None and self._clock() - self._began >= ALONE_SECONDS)
