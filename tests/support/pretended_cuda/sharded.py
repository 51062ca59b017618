"""`python -m support.pretended_cuda.sharded [CASE...]`: gradients of small models of every recipe in bfloat16, with the
layouts of a GPU on the CPU, sharded by FSDP2 over one rank as on a GPU. Prints a JSON object: case to the largest
relative difference from the model that is not sharded, and the gradient's name; or the error."""

from support.pretended_cuda.layouts import of_a_gpu  # isort: skip  # before models

import copy
import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from pretrainkit.dist import parallelize
from pretrainkit.dist.env import World
from pretrainkit.dist.weights import whole
from pretrainkit.nn import layouts
from pretrainkit.training.accumulate import accumulate, seed_dropout
from pretrainkit.training.precision import resolve_precision
from pretrainkit.training.run import ParallelConfig, PrecisionConfig
from pretrainkit.training.trainer import to_device
from support.small_work import CASES, Work, worst_difference

CPU = torch.device("cpu")


def gradients(work: Work) -> dict[str, torch.Tensor]:
    precision = resolve_precision(PrecisionConfig(compute="bfloat16", residual="compute"), CPU)
    accumulate(
        work.objective,
        work.model.train(),
        [to_device(batch, CPU) for batch in work.batches],
        precision=precision,
        world=World(),
        seed_dropout=lambda index: seed_dropout(0, 0, index, 0, CPU),
    )
    named = work.model.named_parameters()
    return {name: whole(parameter.grad) for name, parameter in named if parameter.grad is not None}


def compare(work: Work) -> tuple[float, str]:
    sharded = copy.deepcopy(work)
    mesh = parallelize._mesh(ParallelConfig(strategy="fsdp2"), World())
    parallelize._shard(sharded.model, sharded.model.blocks(), mesh, World(), torch.bfloat16)  # type: ignore[operator]
    with of_a_gpu():
        expected = gradients(work)
        found = gradients(sharded)
    assert found.keys() == expected.keys()
    return worst_difference(found, expected)


if __name__ == "__main__":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    layouts.has_flex = lambda some, head_width: False  # on a CPU it has no backward pass
    parallelize.gathers_in = lambda dtype, world: True  # as on a GPU
    answers: dict[str, Any] = {}
    for name in sys.argv[1:] or CASES:
        try:
            answers[name] = compare(CASES[name]())
        except Exception as error:
            answers[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(answers))
