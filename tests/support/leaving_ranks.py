"""Run by test_leaving.py as one of several processes: a model of DDP outlives the group, whose threads still run."""

import atexit
import gc
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    atexit.register(
        gc.collect
    )  # runs after the callbacks that are registered from here on; torch's compiler has such one
    from pretrainkit.dist.env import init_world

    world = init_world("cpu")
    gc.disable()
    model = DistributedDataParallel(nn.Linear(2, 2))
    model.itself = [model]  # so that the garbage collector has to find it
    sys.setswitchinterval(60)  # a thread of gloo gets the GIL from this one only where this one waits
    torch.distributed.all_reduce(torch.ones(4), async_op=True)  # nobody waits, so gloo's thread has the last reference
    world.close()
    del model
    print("left")
