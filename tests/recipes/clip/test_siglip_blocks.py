"""The sigmoid loss without gathering: the value and gradient of the gathered one, with memory for two blocks."""

import pytest
import torch

from support import SUPPORT
from support.clip_blocks_ranks import PER_RANK
from support.toy_pairs import relative_error
from support.two_processes import run_ranks


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_blocks_from_rank_to_rank_equal_the_gathered_loss(num_ranks, tmp_path):
    run_ranks(num_ranks, SUPPORT / "clip_blocks_ranks.py", str(tmp_path))
    for rank in range(num_ranks):
        found = torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True)
        blocks, gathered = found["blocks"], found["gathered"]
        assert "logit_bias" in blocks["gradients"]
        assert relative_error(blocks["gradients"], gathered["gradients"]) < 1e-12
        for name, (total, weight) in gathered["terms"].items():
            # Equal captions of two blocks have scores that are rounded differently, so that one pair may change sides.
            allowed = 1.01 / (PER_RANK * num_ranks) if "accuracy" in name else 1e-9
            ours = blocks["terms"][name]
            torch.testing.assert_close(ours[0] / ours[1], total / weight, rtol=0, atol=allowed)
        assert (blocks["rows"], gathered["rows"]) == (PER_RANK, PER_RANK * num_ranks)
