"""Whether one more run fits into memory. Torch-free.

What a run takes is learned from those before: the first runs alone until it ends, or for a while. Then a run may start
while all that run would still fit if each took as much as the largest so far.
"""

import time
from collections.abc import Callable, Sequence

from pretrainkit.sweep.memory import Machine

ALONE_SECONDS = 120.0
"""So long a first run runs alone. Reading the data, updates and an evaluation lie within it but for large data; what
a run takes later still counts for those that start later."""
_SPARE = 1.1
"""A run may take this many times what the largest so far took."""
_GB = 1e9


class Room:
    """What is known about the runs of a sweep."""

    def __init__(
        self, machine: Machine, say: Callable[[str], None], num_asked: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            machine: Where they run.
            say: Told once when fewer run at a time than asked for.
            num_asked: Most runs at a time.
            clock: In seconds.
        """
        self._machine, self._say, self._num_asked, self._clock = machine, say, num_asked, clock
        self._largest = self._largest_on_gpu = 0
        self._gpu_bytes: int | None = None
        self._num_ended = 0
        self._began: float | None = None
        self._num_refused_at = 0
        self._has_told = False

    def begin(self) -> None:
        """A run starts now."""
        if self._began is None:
            self._began = self._clock()
            # The GPU tells of all its processes together: what is free before the first is what there is for all.
            self._gpu_bytes = self._machine.free_gpu_bytes()

    def end(self) -> None:
        """A run ended."""
        self._num_ended += 1

    def look(self, pids: Sequence[int]) -> None:
        """See what the runs of these processes take."""
        self._largest = max([self._largest, *(self._machine.usage(pid).peak for pid in pids)])
        if not self._is_learned and self._gpu_bytes is not None:
            free = self._machine.free_gpu_bytes()
            if free is not None:
                self._largest_on_gpu = max(self._largest_on_gpu, self._gpu_bytes - free)

    def has(self, pids: Sequence[int], num_running: int) -> bool:
        """Whether one more fits beside those, of which `pids` have a process by now. A single one always may run."""
        if not num_running:
            return True
        if not self._is_learned:
            return False
        for what, free, need in (
            ("memory", self._bytes(pids), self._largest * _SPARE),
            ("GPU memory", self._gpu_bytes, self._largest_on_gpu * _SPARE),
        ):
            if free is not None and need * (num_running + 1) > free:
                self._tell(num_running, what, need, free)
                return False
        return True

    @property
    def _is_learned(self) -> bool:
        return self._num_ended > 0 or (self._began is not None and self._clock() - self._began >= ALONE_SECONDS)

    def _bytes(self, pids: Sequence[int]) -> int | None:
        """What all runs together may take: what is free, and what they have."""
        taken = sum(self._machine.usage(pid).now for pid in pids)
        free = self._machine.free_bytes()
        return None if free is None else free + taken

    def _tell(self, num_running: int, what: str, need: float, free: int) -> None:
        # Once may be a run that has just begun, which is among `num_running` but not yet among the processes.
        is_lasting, self._num_refused_at = self._num_refused_at == num_running, num_running
        if is_lasting and not self._has_told:
            self._has_told = True
            self._say(
                f"{num_running} of {self._num_asked} runs at a time: each may take {need / _GB:.2f} GB of {what}, and "
                f"there are {free / _GB:.2f} GB for all"
            )
