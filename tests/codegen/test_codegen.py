"""Code that Inductor and Triton make of every block for an H200, and that ptxas compiles; see `support.codegen`.

On request, `make test-codegen`: it needs the package triton and takes ten minutes.
"""

import importlib.util
from functools import cache
from typing import Any

import pytest

from support import answers_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed: make test-codegen"),
]
MOST_KERNELS = {"forward": 16, "backward": 22}
"""Triton kernels of a block."""
WORKLOADS = {
    # Preset and examples, to the parts that are compiled there.
    "bert/base=16": 2,
    "bert/base=16,model.attention_dropout=0,model.hidden_dropout=0": 2,
    "bert/large=8": 2,
    "bert/modern-base=8": 3,
    "pixel/base=8": 2,
    "pixel/small=8": 2,
    "clip/zerovl=32": 3,
    "fourm/b-7=16": 4,
    "t5/1.1-base=16": 3,
}
MOST_SPILLED = 64
"""Bytes per thread. With 1,224 the kernel of 4M's decoder was 10 times slower on an H200."""
CONTRAST = {"kernels": 5, "matrices": 3}
"""Triton kernels of the contrastive loss's scores, and how often they read or write the matrix of logits."""
BIAS_GRADIENT = 2
"""Atomic additions in the backward pass of a T5 block: FlexAttention's gradient of the relative bias."""


@cache
def made(workload: str) -> dict[str, Any]:
    return answers_of("codegen", workload)[workload]["parts"]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_kind_of_block_becomes_few_kernels_without_atomic_additions(workload: str) -> None:
    parts = made(workload)
    assert len(parts) == WORKLOADS[workload], list(parts)
    for name, part in parts.items():
        if "ScoreProducts" in name:  # gives the gradient in its forward pass
            assert part.keys() == {"count", "inference"}
            continue
        assert part.keys() == {"count", "forward", "backward"}, name
        for direction, most in MOST_KERNELS.items():
            one = part[direction]
            assert max(one["spilled"].values(), default=0) <= MOST_SPILLED, (name, one["spilled"])
            has_flex = "Block" in name and workload.startswith(("t5", "fourm"))
            assert bool(one["spilled"]) == has_flex, name
            assert 0 < len(one["kernels"]) <= most, (name, one["kernels"])
            has_bias = workload.startswith("t5/1.1") and "Block" in name and direction == "backward"
            assert one["atomics"] == BIAS_GRADIENT * has_bias, name


def test_the_contrastive_loss_reads_its_logits_twice_and_writes_them_once() -> None:
    ((name, part),) = [one for one in made("clip/zerovl=32").items() if "ScoreProducts" in one[0]]
    kernels = part["inference"]["kernels"]
    assert 0 < len(kernels) <= CONTRAST["kernels"], kernels
    assert part["inference"]["atomics"] == 0
    assert not part["inference"]["calls"], "nothing but Triton's kernels"
    # Beside the matrix there are numbers of each row: fewer than one matrix of them.
    assert sum(kernels.values()) < (CONTRAST["matrices"] + 1) * 32 * 32 * 4, (name, kernels)


@pytest.mark.parametrize(
    ("workload", "kernel"),
    [
        ("bert/base=16", "_flash_attention"),
        ("bert/base=16,model.attention_dropout=0,model.hidden_dropout=0", "_varlen_attn"),
        ("pixel/base=8", "_flash_attention"),
        ("pixel/small=8", "_flash_attention"),
        ("clip/zerovl=32", "_scaled_dot_product"),
    ],
)
def test_attention_is_one_kernel_in_each_direction(workload: str, kernel: str) -> None:
    for name, part in made(workload).items():
        if "Cross" not in name and "ScoreProducts" not in name:
            for direction in ("forward", "backward"):
                assert sum(number for call, number in part[direction]["calls"].items() if kernel in call) == 1, name
