"""Kill savers without warning at random moments, many times: run as a script by `test_checkpoint.py`.

Forks from a process that has imported everything and started no thread, so that a round costs milliseconds.
"""

import os
import random
import signal
import sys
import time
from contextlib import closing
from itertools import count
from pathlib import Path

import torch
import torch.distributed.checkpoint.hf_storage  # before forking
from torch import nn

from pretrainkit.dist.env import World
from pretrainkit.training.checkpoints import files
from pretrainkit.training.checkpoints.checkpoint import CheckpointStore, load, read_weights
from pretrainkit.training.run import CheckpointConfig

NUM_LIVES = 20


def model_of(step: int) -> nn.Module:
    """Return a model whose weights all encode the step."""
    model = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256))
    for parameter in model.parameters():
        nn.init.constant_(parameter, step)
    return model


def save_for_ever(folder: Path) -> None:
    """Resume from the newest checkpoint and save every next step, over and over."""
    with closing(CheckpointStore(folder, CheckpointConfig(keep_last=2), World())) as store:
        newest = store.newest_valid()
        model = model_of(0)
        first = 0 if newest is None else load(newest, World(), model, verify=False).step
        assert all((parameter == first).all() for parameter in model.parameters())
        for step in count(first + 1):
            store.save(step, model_of(step))


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    chance = random.Random(0)
    reached = 0
    life_seconds = 0.0
    for _ in range(NUM_LIVES):
        child = os.fork()
        if child == 0:
            save_for_ever(folder)
        if not life_seconds:  # the first one shows how fast this machine is
            started = time.monotonic()
            while max(files.step_folders(folder), default=0) < 3:  # number 3 itself may be pruned by now
                time.sleep(0.001)
            life_seconds = time.monotonic() - started
        else:
            time.sleep(chance.uniform(0, life_seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        newest = files.newest_valid(folder) if folder.exists() else None
        step = 0
        if newest is not None:
            step = files.read_checkpoint(newest).step
            assert all((weight == step).all() for weight in read_weights(newest).values())
        assert step >= reached, (step, reached)
        if step == reached:
            life_seconds *= 1.2  # the machine has become slower
        reached = step
    assert reached > 3, "no life after the first one saved anything"
    print(f"{reached} steps in {NUM_LIVES} lives")


if __name__ == "__main__":
    main()
