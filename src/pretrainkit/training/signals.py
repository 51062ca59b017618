"""Stop at a step boundary on request: SIGTERM (schedulers), SIGINT (Ctrl-C), SIGUSR1 and SIGUSR2 (SLURM's early
warning).

The first signal only sets a flag: the trainer finishes its step, saves, and exits with code 130. A second SIGINT raises
KeyboardInterrupt immediately, for users who do not want to wait for the save.
"""

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from pretrainkit.workers.processes import handled_signals

_NAMES = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
_ECHO_SECONDS = 0.5
"""Ctrl-C under torchrun arrives twice: from the terminal, and from its agent. A second one this soon is a copy."""
_ASK_SECONDS = 2.0
"""Ranks ask each other for signals about this often. Schedulers kill a process 30 s after SIGTERM."""
_MOST_STEPS = 10
"""Maximum number of steps from one such request to the next."""


class StopSignal:
    """Context manager that turns stop signals into a flag.

        with StopSignal() as stop:
            for step in ...:
                ...
                if stop.agreed(world.max):
                    save, raise Interrupted

    Python runs handlers in the main thread only. In another thread the context does nothing and the flag stays unset,
    unless `request` is called.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        """Name of the first signal received, such as "SIGTERM"; None: no signal yet."""
        self._interrupted_at: float | None = None
        self._num_steps = 1
        """Number of steps after which ranks ask each other again, the same on all ranks."""
        self._steps_left = 1
        self._asked_at = time.monotonic()

    @property
    def is_set(self) -> bool:
        """True if this process was asked to stop. Other ranks may not have been: see `agreed`."""
        return self.name is not None

    def request(self, name: str = "request") -> None:
        """Request a stop, as a signal does."""
        self.name = self.name or name

    def agreed(self, largest: Callable[..., list[float]], *, wish: bool = False, each_step: bool = True) -> bool:
        """Return True if the run stops after this step: any rank was asked to stop or has the `wish`. All ranks get the
        same answer and must call it after every step.

        `largest` is `World.max`. It costs nothing with one process. With several it is one small message over the CPU,
        which waits for the slowest rank. Without `each_step` (for GPUs, whose host runs ahead), ranks ask each other
        only every ten steps, or every two seconds if that is sooner, by the clock of the slowest rank.
        """
        self._steps_left -= 1
        if self._steps_left and not each_step:
            return False
        now = time.monotonic()
        is_asked, seconds = largest(float(self.is_set or wish), (now - self._asked_at) / self._num_steps)
        self._num_steps = max(1, min(_MOST_STEPS, int(_ASK_SECONDS / max(seconds, 1e-9))))
        self._steps_left, self._asked_at = self._num_steps, now
        return bool(is_asked)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if name == "SIGINT":
            now = time.monotonic()
            if self._interrupted_at is not None and now - self._interrupted_at > _ECHO_SECONDS:
                raise KeyboardInterrupt
            self._interrupted_at = self._interrupted_at or now
        self.request(name)

    def __enter__(self) -> Self:
        self._handling = handled_signals(_NAMES, self._handle)
        self._handling.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._handling.__exit__(*error)
