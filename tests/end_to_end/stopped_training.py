"""`python stopped_training.py SIGNAL STEP WORDS...`: `pretrainkit WORDS...`, which gets SIGNAL after update STEP."""

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from pretrainkit.cli import progress
from pretrainkit.cli.main import main


class Stopping(progress.LineWatcher):
    """Sends the signal to its own process when the step is logged; prints as ever."""

    def logged(self, step: int, metrics: Mapping[str, Any]) -> None:
        super().logged(step, metrics)
        if step == int(os.environ["STOP_AFTER_STEP"]):
            os.kill(os.getpid(), signal.Signals[os.environ["STOP_WITH"]])


if __name__ == "__main__":
    os.environ["STOP_WITH"], os.environ["STOP_AFTER_STEP"] = sys.argv[1:3]
    progress.LineWatcher = Stopping  # type: ignore[misc]
    sys.argv = ["pretrainkit", *sys.argv[3:]]
    main()
