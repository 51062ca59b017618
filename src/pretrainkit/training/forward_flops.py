"""FLOPs of a forward pass of a model of another library, counted with tensors that have shapes but no values.

Only matrix products count, with 2 FLOPs per multiply-add.
"""

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from pretrainkit.training.fake_tensor import FakeTensor

_log = logging.getLogger(__name__)
_LENGTHS = (4, 8, 16)
"""Lengths of texts to count. Any three work, because the count is a polynomial of degree two."""


def fake_zeros(*shape: int) -> Tensor:
    return FakeTensor(torch.zeros(shape, device="meta"))


def forward_flops(model: nn.Module, **inputs: Tensor) -> float:
    """Return the forward FLOPs of a model from `faked`; 0, with a warning, if it cannot run without values."""

    def attention(*shapes: Any, **_: Any) -> int:
        return sdpa_flop_count(*shapes[:3])

    on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # torch's counter does not know it
    counter = FlopCounterMode(display=False, custom_mapping={on_cpu: attention})
    try:
        with torch.no_grad(), counter:
            model(**inputs)
    except RuntimeError as error:  # also if torch lacks an operator for tensors without values
        _log.warning("FLOPs are not counted, because %s cannot run without values: %s", type(model).__name__, error)
        return 0.0
    return float(counter.get_total_flops())


def text_flops(model: nn.Module, *names: str) -> tuple[float, float, float]:
    """Return the coefficients, highest power first, of the forward FLOPs of a text as a polynomial of its length; zeros
    for a model that pads texts to whole windows, such as Longformer. `model` is from `faked`; `names` are its inputs
    (B, T), such as `input_ids`."""
    # Inputs have values, because some models choose their operations by them.
    inputs = [dict.fromkeys(names, torch.ones((1, length), dtype=torch.int64)) for length in _LENGTHS]
    counts = [forward_flops(model, **given) for given in inputs]
    if len(set(counts)) == 1:
        return 0.0, 0.0, 0.0
    square, linear, constant = np.polyfit(_LENGTHS, counts, 2).tolist()
    return square, linear, constant
