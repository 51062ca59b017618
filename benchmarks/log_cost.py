"""Share of a training step that default logging takes: CPU time of the main thread in the functions that log.

    python benchmarks/log_cost.py clip/tiny data.train=SET data.valid=SET data.tokenizer=FOLDER num_steps=20

They are called in each step (counting the work, the time of the step, the progress display) and at each logged line
(reading the loss, writing metrics, looking for spikes). Evaluations and checkpoints do not count.
"""

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pretrainkit
from pretrainkit.cli.progress import LineWatcher
from pretrainkit.recipes.registry import find_recipe
from pretrainkit.training.throughput import Throughput
from pretrainkit.training.trainer import Trainer

SECONDS: defaultdict[str, list[float]] = defaultdict(list)


def measure(owner: Any, name: str) -> None:
    """Record the time of each call of a method."""
    method: Callable[..., Any] = getattr(owner, name)

    def measured(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        try:
            return method(*args, **kwargs)
        finally:
            SECONDS[name].append(time.thread_time() - began)

    setattr(owner, name, measured)


def main() -> None:
    config = pretrainkit.load_config(sys.argv[1], sys.argv[2:])
    recipe = find_recipe(config.recipe)
    objective = type(recipe.build_objective(recipe.bind(config)))
    for owner, name in ((Trainer, "_update"), (Trainer, "_fetch"), (Trainer, "_log")):
        measure(owner, name)
    for owner, name in ((Throughput, "add"), (Throughput, "time"), (LineWatcher, "stepped"), (objective, "cost")):
        measure(owner, name)
    with tempfile.TemporaryDirectory() as folder:
        pretrainkit.train(config, Path(folder) / "run", watcher=LineWatcher())
    steps = SECONDS.pop("_update")
    for name, times in SECONDS.items():
        print(f"{name:<10} {len(times):6} calls of {1e6 * sum(times) / len(times):8.0f} us")
    spent = sum(map(sum, SECONDS.values()))
    print(f"{spent / (sum(steps) + spent):.3%} of {len(steps)} steps of {sum(steps) / len(steps):.3f} s on average")


if __name__ == "__main__":
    main()
