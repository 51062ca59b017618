"""Results of the code that Inductor makes for an H200, FlexAttention included: see `support.interpreted`.

On request, `make test-codegen`: it needs the package triton and takes minutes.
"""

import importlib.util

import pytest

from support import answers_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed: make test-codegen"),
]
MOST = {"float32": 1e-5, "bfloat16": 0.05}
"""Relative difference of an output or gradient from the plain module's. Sums of a few numbers in bfloat16 differ by
0.03 if they are rounded elsewhere."""


@pytest.mark.parametrize(
    ("number_format", "case", "num_parts"),
    [
        ("float32", "t5 packed", 3),
        ("bfloat16", "t5 packed", 3),
        ("float32", "t5 long rows", 3),
        ("float32", "fourm", 6),
        ("bfloat16", "fourm", 6),
        ("float32", "fourm long rows", 6),
        ("bfloat16", "bert packed, with room", 2),
        ("bfloat16", "bert modern", 3),
        ("bfloat16", "pixel padded", 2),
        ("float32", "clip", 3),
        ("float32", "clip of timm and transformers", 3),
        ("float32", "image_tokenizer", 1),
    ],
)
def test_compiled_blocks_have_the_results_of_plain_ones(number_format: str, case: str, num_parts: int) -> None:
    word = f"{number_format}:{case}"
    parts = answers_of("interpreted", word)[word]
    assert len(parts) == num_parts, list(parts)
    for part, differences in parts.items():
        worst = max(differences, key=lambda name: differences[name])
        assert differences[worst] <= MOST[number_format], (part, worst, differences[worst])
