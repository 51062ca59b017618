"""One of several ranks: trains CONFIG into a folder, and prints where the model's weights are before it is sharded.

Arguments: CONFIG OUT CHANGES...
"""

import sys
from pathlib import Path
from typing import Any

from torch import nn

import pretrainkit
from pretrainkit.training import trainer


def train(config: str, out: str, *changes: str) -> None:
    parallelize = trainer.parallelize

    def spying(model: nn.Module, *others: Any, **options: Any) -> nn.Module:
        print(*sorted({parameter.device.type for parameter in model.parameters()}))
        return parallelize(model, *others, **options)

    trainer.parallelize = spying  # type: ignore[assignment]
    pretrainkit.train(pretrainkit.load_config(config, changes), Path(out))


if __name__ == "__main__":
    train(*sys.argv[1:])
