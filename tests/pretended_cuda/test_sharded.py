"""FSDP2 as on a GPU, which gathers weights in bfloat16: no other gradients than without sharding, but for rounding."""

import pytest

from support import answers_of

pytestmark = pytest.mark.slow

MOST = 0.1
"""Relative difference of a gradient. Rounding alone makes 0.06 in clip's tiny towers."""


def test_sharded_models_of_every_recipe_have_the_gradients_of_whole_ones() -> None:
    answers = answers_of("pretended_cuda.sharded")
    assert len(answers) > 20
    wrong = {name: answer for name, answer in answers.items() if isinstance(answer, str) or not answer[0] < MOST}
    assert not wrong, wrong
