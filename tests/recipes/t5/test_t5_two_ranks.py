"""One process = two with DDP = two with FSDP2, in the gradient of a global batch, for three families."""

from pathlib import Path

from two_processes import run_two


def test_ddp_and_fsdp2_have_the_gradient_of_one_process():
    run_two(Path(__file__).with_name("t5_two_ranks.py"))
