"""`python stopped_training.py SIGNAL STEP WORDS...`: `pretrainkit WORDS...`, which gets SIGNAL after update STEP.

Instead of STEP, EVENT:STEP: when that event of that step was recorded, such as checkpoint:12. Instead of SIGNAL, HANG:
the process then does nothing. With STEP_TIMES in the environment, the time of each logged step is appended to that
file. With STOP_RANK in the environment, that rank gets the signal, before update STEP, once in a run.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from pretrainkit.cli import progress
from pretrainkit.cli.main import main


class Stopping(progress.LineWatcher):
    """Sends the signal to its own process when the step is logged; prints as ever."""

    def logged(self, step: int, metrics: Mapping[str, Any]) -> None:
        super().logged(step, metrics)
        if path := os.environ.get("STEP_TIMES"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{time.time()} {step}\n")
        self._stop_at(str(step))

    def event(self, step: int, kind: str, text: str) -> None:
        super().event(step, kind, text)
        self._stop_at(f"{kind}:{step}")

    def _stop_at(self, point: str) -> None:
        if point == os.environ["STOP_AFTER_STEP"] and "STOP_RANK" not in os.environ:
            strike()


def strike() -> None:
    """Do to this process what the arguments request."""
    while os.environ["STOP_WITH"] == "HANG":
        time.sleep(1)
    os.kill(os.getpid(), signal.Signals[os.environ["STOP_WITH"]])


def _stopped_before(step: int) -> None:
    """Strike this rank before an update."""
    from pretrainkit.training.trainer import Trainer

    update = Trainer._update

    def stopping(self: Trainer, number: int, *arguments: Any) -> Any:
        marker = f"{os.environ['STEP_TIMES']}-{step}"
        if number + 1 == step and not os.path.exists(marker):
            os.close(os.open(marker, os.O_CREAT))
            strike()
        return update(self, number, *arguments)

    Trainer._update = stopping  # type: ignore[method-assign]


if __name__ == "__main__":
    os.environ["STOP_WITH"], os.environ["STOP_AFTER_STEP"] = sys.argv[1:3]
    progress.LineWatcher = Stopping  # type: ignore[misc]
    if os.environ.get("STOP_RANK") == os.environ.get("RANK", "0"):
        _stopped_before(int(sys.argv[2]))
    sys.argv = ["pretrainkit", *sys.argv[3:]]
    main()
