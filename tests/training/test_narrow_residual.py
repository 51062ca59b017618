"""Training with a residual stream in bfloat16, as is usual on a GPU, beside training in float32: the same losses. The
CPU emulates bfloat16. `docs/gpu.md` has longer runs, of real text."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pretrainkit.training.accumulate import accumulate
from pretrainkit.training.optimizers.build import build_optimizer, clip_gradients, parameters_of, step_if_finite
from pretrainkit.training.precision import Precision
from pretrainkit.training.trainer import to_device
from support import bert_batches, pixel_batches
from support.small_work import Work, arrays, bert, pixel

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
LINE = 10
"""Steps of a line of the log, whose mean loss is compared."""


def losses(work: Work, batches: list[dict[str, Any]], num_steps: int, precision: Precision) -> np.ndarray:
    model = copy.deepcopy(work.model).train()
    optimizer = build_optimizer(model, work.optimizer)
    found = []
    for step in range(num_steps):
        optimizer.zero_grad(set_to_none=True)
        batch = to_device(batches[step % len(batches)], CPU)
        parts = accumulate(work.objective, model, [batch], precision=precision)
        found.append(sum(float(part.total / part.weight) for part in parts.values()))
        step_if_finite(optimizer, precision, clip_gradients(parameters_of(optimizer), work.optimizer))
    return np.reshape(found, (-1, LINE)).mean(1)


@pytest.mark.parametrize(
    ("work", "batch", "num_steps", "fall"),
    [
        (lambda: bert(rows=True), lambda seed: bert_batches.row_batch([24, 9, 15, 20], seed=seed), 300, 0.6),
        (pixel, lambda seed: pixel_batches.batch_of(seed, [16, 7, 12]), 100, 0.95),
    ],
    ids=["bert, 300 steps", "pixel, 100 steps"],
)
def test_losses_are_those_of_float32(
    work: Callable[[], Work], batch: Callable[[int], Any], num_steps: int, fall: float
) -> None:
    batches = [arrays(batch(seed)) for seed in range(20)]
    wide, narrow = (
        losses(work(), batches, num_steps, Precision(CPU, compute, False, None, has_narrow_residual=is_narrow))
        for compute, is_narrow in ((torch.float32, False), (torch.bfloat16, True))
    )
    assert wide[-1] < fall * wide[0], "nothing was learned"
    np.testing.assert_allclose(narrow, wide, rtol=0.005)
    assert not np.array_equal(narrow, wide)
