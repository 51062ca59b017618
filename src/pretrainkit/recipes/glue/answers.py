"""What a model says about all examples of a source, on all ranks.

Dimensions: B examples of a batch, N of the source, C classes (1 where a number is asked for).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pretrainkit.data.source import Records
from pretrainkit.dist.env import World
from pretrainkit.eval.evaluator import dealt, evaluation_mode
from pretrainkit.recipes.glue.objective import GlueObjective
from pretrainkit.recipes.glue.source import TextSource
from pretrainkit.training.precision import Precision

_ALONE = World()


def outputs_of(
    model: nn.Module,
    objective: GlueObjective,
    source: TextSource,
    rows_N: NDArray[np.int64],
    *,
    batch_size: int,
    precision: Precision,
    world: World = _ALONE,
) -> NDArray[np.float32]:
    """(N, C) logits or numbers of the examples `rows_N` of the source, counted over its components; a collective.

    Examples of like length are asked about together; the answers come back in the order of `rows_N`.
    """
    records = records_of(source, rows_N)
    order_N = np.argsort(source.lengths(records), kind="stable")
    numbers, num_counted = dealt(-(-len(rows_N) // batch_size), world)
    mine: list[tuple[list[int], list[list[float]]]] = []
    with evaluation_mode(model), torch.no_grad():
        for turn, number in enumerate(numbers):
            chosen = order_N[number * batch_size : (number + 1) * batch_size]
            host = source.build(records.take(chosen))
            batch = {name: torch.from_numpy(array).to(precision.device) for name, array in host.items()}
            with precision.autocast():
                outputs_BC = objective.outputs(model, batch)
            if turn < num_counted:
                mine.append((chosen.tolist(), outputs_BC.tolist()))
    everyone = [part for theirs in world.gather_objects(mine) for part in theirs]
    found = np.empty((len(rows_N), len(everyone[0][1][0])), np.float32)
    for chosen_B, values_BC in everyone:
        found[chosen_B] = values_BC
    return found


def records_of(source: TextSource, rows_N: NDArray[np.int64]) -> Records:
    sizes = np.asarray(source.sizes, np.int64)
    ends = np.cumsum(sizes)
    component = np.searchsorted(ends, rows_N, side="right")
    index = rows_N - (ends - sizes)[component]
    return Records(component.astype(np.int64), np.zeros_like(rows_N), index, rows_N.astype(np.uint64))


def said(outputs_NC: NDArray[np.float32], classes: tuple[str, ...]) -> NDArray[np.int64] | NDArray[np.float32]:
    """(N,) numbers of the likeliest classes, or numbers."""
    return outputs_NC.argmax(1) if classes else outputs_NC[:, 0]
