"""`compiled_ranks.py FOLDER BACKEND`: what each of two ranks does in `dist/test_compiled_ranks.py` and
`codegen/test_inductor_ranks.py`, as in `rank_checks`. That backend compiles blocks."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch._dynamo.utils import counters

from pretrainkit.dist.env import World
from pretrainkit.dist.weights import full_state_dict
from support.rank_checks import build, run_checks, train


def check_compiled_blocks_train_as_others_do(world: World, folder: Path) -> None:
    alone, optimizer = build(World(), "auto")
    norms = train(alone, optimizer, World(), range(3))
    parameters = full_state_dict(alone)
    for strategy in ("ddp", "fsdp2"):
        counters.clear()
        model, optimizer = build(world, strategy, seed=world.rank, compile="on")
        torch.testing.assert_close(train(model, optimizer, world, range(3)), norms, rtol=1e-5, atol=0)
        for name, found in full_state_dict(model).items():
            torch.testing.assert_close(found, parameters[name], rtol=0, atol=4e-6)
        assert counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
        assert not counters["graph_break"]


if __name__ == "__main__":
    torch._dynamo.config.run_gc_after_compile = False
    if sys.argv[2] != "inductor":  # the only one with options
        compile_module = nn.Module.compile
        nn.Module.compile = lambda self, **_: compile_module(self, backend=sys.argv[2])  # type: ignore[method-assign]
    run_checks(Path(sys.argv[1]), globals())
