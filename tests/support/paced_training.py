"""`python paced_training.py WORDS...`: `pretrainkit WORDS...`, whose ranks make no update beyond the number in the file
PACE/go unless they were asked to stop. Rank 0 appends to PACE/rounds its number of ranks when it starts."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from pretrainkit.cli.main import main
from pretrainkit.training.signals import StopSignal
from pretrainkit.training.trainer import Trainer

PACE = Path(os.environ["PACE"])
update, fit = Trainer._update, Trainer.fit
signals: list[StopSignal] = []


def enter(self: StopSignal) -> StopSignal:
    signals.append(self)
    return entered(self)


def paced(self: Trainer, step: int, *arguments: Any) -> Any:
    while step >= int((PACE / "go").read_text() or 0) and not any(stop.is_set for stop in signals):
        time.sleep(0.05)
    return update(self, step, *arguments)


def told(self: Trainer) -> dict[str, float]:
    if self.world.is_main:
        with open(PACE / "rounds", "a", encoding="utf-8") as file:
            file.write(f"{self.world.world_size} {self.step}\n")
    return fit(self)


if __name__ == "__main__":
    entered = StopSignal.__enter__
    StopSignal.__enter__ = enter  # type: ignore[method-assign]
    Trainer._update, Trainer.fit = paced, told  # type: ignore[method-assign]
    sys.argv = ["pretrainkit", *sys.argv[1:]]
    main()
