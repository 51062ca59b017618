"""What a model says about all examples of a source, on all ranks.

Dimensions: B examples of a batch, N of the source.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pretrainkit.data.source import Records
from pretrainkit.dist.env import World
from pretrainkit.eval.evaluator import dealt, evaluation_mode
from pretrainkit.recipes.glue.kinds.labelled import Said
from pretrainkit.recipes.glue.objective import GlueObjective
from pretrainkit.recipes.glue.source import TextSource
from pretrainkit.training.precision import Precision

_ALONE = World()


def answers_of(
    model: nn.Module,
    objective: GlueObjective,
    source: TextSource,
    index_N: NDArray[np.int64],
    *,
    batch_size: int,
    precision: Precision,
    world: World = _ALONE,
) -> list[Said]:
    """What is said about the examples `index_N` of the source, counted over its components; a collective.

    Examples of like length are asked about together; the answers come back in the order of `index_N`.
    """
    records = records_of(source, index_N)
    order_N = np.argsort(source.lengths(records), kind="stable")
    numbers, num_counted = dealt(-(-len(index_N) // batch_size), world)
    mine: list[tuple[list[int], list[Said]]] = []
    with evaluation_mode(model), torch.no_grad():
        for turn, number in enumerate(numbers):
            chosen = order_N[number * batch_size : (number + 1) * batch_size]
            host = source.build(records.take(chosen))
            batch = {name: torch.from_numpy(array).to(precision.device) for name, array in host.items()}
            with precision.autocast():
                outputs = objective.outputs(model, batch)
            if turn < num_counted:
                parts = objective.by_example(outputs, host)
                said = [source.examples.said(int(i), part) for i, part in zip(index_N[chosen], parts, strict=True)]
                mine.append((chosen.tolist(), said))
    found: list[Said] = [None] * len(index_N)
    for theirs in world.gather_objects(mine):
        for chosen_B, said_B in theirs:
            for place, value in zip(chosen_B, said_B, strict=True):
                found[place] = value
    return found


def records_of(source: TextSource, index_N: NDArray[np.int64]) -> Records:
    """The records of these examples, counted over the components."""
    sizes = np.asarray(source.sizes, np.int64)
    ends = np.cumsum(sizes)
    component = np.searchsorted(ends, index_N, side="right")
    index = index_N - (ends - sizes)[component]
    return Records(component.astype(np.int64), np.zeros_like(index_N), index, index_N.astype(np.uint64))
