"""Compilation of every recipe for a GPU: no graph break, few graphs, and nothing that runs uncompiled because
a limit was hit or torch left it out. See `support.compile_budget`."""

from typing import Any

import pytest

from support import answers_of

MOST_GRAPHS = {
    "bert packed": 6,
    "bert rows, recomputed": 6,
    "bert modern": 10,
    "pixel dropout": 6,
    "t5 decoder": 4,
    "t5 1.0, dropout": 6,
    "fourm": 6,
    "clip": 14,
    "image_tokenizer convolutions": 22,
}
"""Graphs of a run: those of the first batch and of evaluation. Batches of other sizes need no more."""


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    return answers_of("compile_budget")


@pytest.mark.parametrize("name", MOST_GRAPHS)
def test_all_blocks_and_heads_are_compiled_into_few_graphs(found: dict[str, Any], name: str) -> None:
    told = found[name]
    assert "error" not in told, told["error"]
    assert told["breaks"] == {}
    assert told["runs"] == told["calls"] > 0
    assert sum(told["graphs"]) <= MOST_GRAPHS[name], told["graphs"]
    assert told["graphs"][1:5] == [0, 0, 0, 0], "steps compile after the first one"
    assert told["graphs"][-1] == 0, "training compiles again after an evaluation"


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
def test_a_head_keeps_one_matrix_of_logits_in_the_type_of_the_product(found: dict[str, Any], compute: str) -> None:
    """Its backward pass is one more graph, because everything up to it is fused."""
    assert found["head"][compute] == {"kept": [compute], "scatters": []}


def test_residual_sums_are_kept_for_the_backward_pass(found: dict[str, Any]) -> None:
    assert found["sums"] == {"bert packed": [], "t5 decoder": []}


def test_a_compiled_contrastive_loss_is_the_plain_one_to_the_last_bit(found: dict[str, Any]) -> None:
    assert found["contrast"] == dict.fromkeys(("plain", "mixup and smoothing", "duplicates", "sigmoid"), True)


def test_code_that_torch_gives_up_compiling_is_reported_once_with_its_reason(found: dict[str, Any]) -> None:
    (text,) = found["given up"]
    assert text.startswith("torch.compile has made 2 graphs of '")
    assert "compile_budget.py" in text
    assert "size mismatch at index 0" in text
    assert text.endswith("parallel.compile=off saves the time that compiling takes")
