"""`python stopped_training.py SIGNAL STEP WORDS...`: `pretrainkit WORDS...`, which gets SIGNAL after update STEP.

Instead of STEP, EVENT:STEP: when that event of that step was recorded, such as checkpoint:12. With STEP_TIMES in the
environment, the time of each logged step is appended to that file.
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
        if point == os.environ["STOP_AFTER_STEP"]:
            os.kill(os.getpid(), signal.Signals[os.environ["STOP_WITH"]])


if __name__ == "__main__":
    os.environ["STOP_WITH"], os.environ["STOP_AFTER_STEP"] = sys.argv[1:3]
    progress.LineWatcher = Stopping  # type: ignore[misc]
    sys.argv = ["pretrainkit", *sys.argv[3:]]
    main()
