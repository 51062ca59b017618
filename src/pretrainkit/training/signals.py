"""Stopping at a step boundary when asked to: SIGTERM (schedulers), SIGINT (Ctrl-C), SIGUSR1 and
SIGUSR2 (SLURM's early warning).

The first signal only sets a flag: the trainer finishes its step, saves, and ends with exit code 130. A second SIGINT
raises KeyboardInterrupt at once, for whoever does not want to wait for the save.
"""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

_NAMES = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
_ECHO_SECONDS = 0.5
"""Ctrl-C under torchrun arrives twice: from the terminal, and forwarded by its agent. One this soon is the same."""


class StopSignal:
    """Context manager that turns stop signals into a flag.

        with StopSignal() as stop:
            for step in ...:
                ...
                if stop.agreed(world.any, step):
                    save, raise Interrupted

    Python runs handlers in the main thread only. In another thread the context does nothing and the flag stays unset,
    unless `request` is called.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        """The first signal that came, such as "SIGTERM"; None when none did."""
        self._previous: dict[signal.Signals, Any] = {}
        self._interrupted_at: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether this process was asked to stop. Other ranks may not have been: see `agreed`."""
        return self.name is not None

    def request(self, name: str = "request") -> None:
        """Ask for a stop as a signal would."""
        self.name = self.name or name

    def agreed(self, any_rank: Callable[[bool], bool], step: int, every_steps: int = 1) -> bool:
        """Whether to stop after `step`: the same answer on all ranks, true when any rank was asked to.

        Call it on every rank after every step. `any_rank` is `World.any`: free with one process; with several, one
        message of 4 bytes through the CPU, which waits for the slowest rank. On GPUs, where the host runs ahead of the
        device, every_steps=10 keeps it that way; a scheduler's grace time is many seconds.
        """
        return step % every_steps == 0 and any_rank(self.is_set)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if name == "SIGINT":
            now = time.monotonic()
            if self._interrupted_at is not None and now - self._interrupted_at > _ECHO_SECONDS:
                raise KeyboardInterrupt
            self._interrupted_at = self._interrupted_at or now
        self.request(name)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name in _NAMES:
                number = getattr(signal.Signals, name, None)  # Windows has no SIGUSR1
                if number is not None:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()
