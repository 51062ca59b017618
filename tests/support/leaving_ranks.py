"""Run by test_leaving.py as one of several processes: a model of DDP outlives the group, whose threads are not done."""

import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pretrainkit.dist.env import init_world

if __name__ == "__main__":
    world = init_world("cpu")
    model = DistributedDataParallel(nn.Linear(2, 2))
    sys.setswitchinterval(60)  # a thread of gloo gets the GIL from this one only where this one waits
    torch.distributed.all_reduce(torch.ones(4), async_op=True)  # nobody waits, so gloo's thread has the last reference
    world.close()
    del model
    print("left")
