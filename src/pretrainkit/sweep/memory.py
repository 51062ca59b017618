"""How much memory is free, and how much runs take: Linux's own accounts, and those of NVIDIA's driver. Torch-free.

Elsewhere nothing is known, which is said as None.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_KIB, _MIB = 1 << 10, 1 << 20
_GROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By the name of the controller (none in version 2): the limit, what is used, and the entry of `memory.stat` for files
that are cached, which the system drops when memory is asked for."""


@dataclass(frozen=True)
class Usage:
    """Of a run: its process and all that it started, in bytes."""

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
        """What processes may still take without swapping, within the limits of this process's control groups."""
        try:
            lines = (self.proc / "meminfo").read_text().splitlines()
        except OSError:
            return None
        fields = dict(line.split(":", 1) for line in lines)
        available = int(fields["MemAvailable"].split()[0]) * _KIB
        return min([available, *self._left_in_groups()])

    def usage(self, pid: int) -> Usage:
        """0 where the process has ended."""
        now = peak = 0
        for one in self._tree(pid):
            fields = self._status(one)
            now += fields.get("VmRSS", 0)
            peak += fields.get("VmHWM", 0)
        return Usage(now, peak)

    def free_gpu_bytes(self) -> int | None:
        """Of the GPU of the runs; None: there is none, or its driver does not say."""
        program = shutil.which("nvidia-smi") if self.gpu is not None else None
        if program is None:
            return None
        query = ["--query-gpu=memory.free", "--format=csv,noheader,nounits"]
        said = subprocess.run([program, "-i", str(self.gpu), *query], capture_output=True, text=True, check=False)
        word = said.stdout.strip()
        return int(word) * _MIB if word.isdecimal() else None

    def _left_in_groups(self) -> Iterator[int]:
        try:
            lines = (self.proc / "self" / "cgroup").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            for name in {"", "memory"} & set(controllers.split(",")):
                yield from self._left(self.groups / name, path.strip("/"), *_GROUP_FILES[name])

    def _left(self, root: Path, path: str, limit: str, used: str, cached: str) -> Iterator[int]:
        """Of a group and all above it: a limit counts for all below. A container may not see its own path."""
        folders = [root / path, *(root / path).parents]
        for folder in folders[: folders.index(root) + 1]:
            try:
                word = (folder / limit).read_text().strip()
                taken = int((folder / used).read_text())
                entries = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            except OSError:
                continue
            if word != "max":
                yield max(0, int(word) - taken + int(entries.get(cached, 0)))

    def _tree(self, pid: int) -> Iterator[int]:
        yield pid
        for tasks in (self.proc / str(pid) / "task").glob("*/children"):
            try:
                children = tasks.read_text().split()
            except OSError:
                continue
            for child in children:
                yield from self._tree(int(child))

    def _status(self, pid: int) -> dict[str, int]:
        """Its sizes in bytes by name."""
        try:
            lines = (self.proc / str(pid) / "status").read_text().splitlines()
        except OSError:
            return {}
        found = (line.split() for line in lines if line.endswith(" kB"))
        return {name.rstrip(":"): int(size) * _KIB for name, size, _ in found}


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
