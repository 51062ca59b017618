"""Every recipe and optimizer on pretended CUDA: the CPU's gradients, no unwritten memory, no device mixed with another,
and no wait of the host for the device. See `support.pretended_cuda`."""

import ast
import os
import shutil
import sys
from typing import Any

import pytest
import torch

from support import SUPPORT, answers_of

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the guard is built and loaded as on Linux"),
    pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="there is no C++ compiler"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="this build of torch has a CUDA of its own"),
]
LIMITS = {"float32": 1e-5, "bfloat16": 1e-4}
"""Largest relative differences of a gradient from the CPU's: in float32 with its own layouts, in bfloat16 with those of
a GPU, where all but `WIDER` are equal to the last bit."""
ROUNDING = 2
"""Maximum ratio of the rounding errors of bfloat16 here and in the CPU's own gradients; errors below 1e-2 always pass.
Two microbatches of tiny models are not closer to float32 on any device: 1e-2 in bert, 3e-2 in t5, whose logits are not
divided by the root of the heads' width, 2e-2 in clip, which multiplies them by 14, 5e-2 in fourm, and 0.13 in glue's
spans, where the gradient of a bias that all slots share is 0 but for rounding."""
WIDER = {
    ("image_tokenizer convolutions", "float32"): 1e-4,
    # Convolutions of another order in memory round otherwise, and latents near a border get another code.
    ("image_tokenizer convolutions", "bfloat16"): 0.3,
}
MOST_OPERATORS = 60
"""Calls that launch work in an update of parameters with as many different shapes as T5 1.1 base has. Views and
memory that is only taken are not counted (`_WITHOUT_KERNEL` of updates.py), nor is clipping."""

STEP_OPERATORS = {
    ("bert packed, with room", "bfloat16"): 526,
    ("bert packed, dropout", "bfloat16"): 538,
    ("bert rows", "float32"): 412,
    ("bert modern", "bfloat16"): 803,
    ("t5 packed", "bfloat16"): 2053,
    ("t5 packed", "float32"): 1701,
    ("pixel", "bfloat16"): 796,
    ("fourm", "bfloat16"): 1957,
    ("clip", "bfloat16"): 1246,
    ("clip of timm and transformers", "bfloat16"): 1361,
    ("image_tokenizer", "bfloat16"): 1784,
    ("image_tokenizer convolutions", "bfloat16"): 2092,
    ("optimizer adamw", "float32"): 474,
    ("optimizer scaled adamw", "float32"): 496,
    ("optimizer lamb", "float32"): 505,
    ("optimizer lars", "float32"): 508,
    ("optimizer lion", "float32"): 476,
    ("optimizer muon", "float32"): 515,
    ("optimizer sgd", "float32"): 470,
}
"""Calls that launch work in a whole step of a small model, uncompiled: two microbatches, clipping, the update and the
running average of the weights. Lower a number that has become too high."""
STEP_MARGIN = 1.1


def cases(table: str) -> list[str]:
    """Names in a table of small_work.py or updates.py, which cannot be imported here: this process has loaded torch."""
    files = (SUPPORT / "small_work.py", SUPPORT / "pretended_cuda" / "updates.py")
    (found,) = (
        node.value
        for file in files
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == table
    )
    assert isinstance(found, ast.Dict)
    return [ast.literal_eval(key) for key in found.keys if key is not None]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return answers_of("pretended_cuda.updates")


@pytest.mark.parametrize("name", cases("CASES"))
def test_an_update_is_that_of_a_cpu_and_waits_for_nothing(found: dict[str, Any], name: str) -> None:
    for compute, told in found[name].items():
        check(name, compute, told)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("bert packed, with room", "torch_attn._varlen_attn.default"),
        ("bert packed, dropout", "aten._flash_attention_forward.default"),
        ("pixel", "torch_attn._varlen_attn.default"),
        ("pixel dropout", "aten._flash_attention_forward.default"),
        ("pixel heads of 44", "torch_attn._varlen_attn.default"),
    ],
)
def test_packed_examples_take_the_flash_kernel_in_half_precision(found: dict[str, Any], name: str, kernel: str) -> None:
    assert found[name]["bfloat16"]["attention"] == [kernel]


def check(name: str, compute: str, told: dict[str, Any]) -> None:
    assert "error" not in told, told
    assert told["not_finite"] == []
    assert told["missing"] == []
    assert told["worst"] < WIDER.get((name, compute), LIMITS[compute]), told["name"]
    if "rounding" in told:
        here, cpu = told["rounding"]
        assert here < max(1e-2, ROUNDING * cpu)
    assert told["waits"] == {}


@pytest.mark.parametrize(("name", "compute"), STEP_OPERATORS)
def test_a_step_launches_no_more_work_than_it_did(found: dict[str, Any], name: str, compute: str) -> None:
    assert found[name][compute]["operators"] <= STEP_MARGIN * STEP_OPERATORS[name, compute]


@pytest.mark.parametrize("name", cases("OPTIMIZERS"))
def test_an_optimizer_makes_few_calls_and_skips_gradients_that_are_not_finite(found: dict[str, Any], name: str) -> None:
    for told in found[f"alone {name}"].values():
        assert told["waits"] == {}
        assert told["changed"] == 0
        assert told["worst"] < 1e-5
        assert told["moved"] > 0
    assert found[f"alone {name}"]["deep"]["operators"] <= MOST_OPERATORS
