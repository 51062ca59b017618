"""One process = two with DDP = two with FSDP2, in the gradient of a global batch, for both architectures."""

from support import SUPPORT
from support.two_processes import run_two


def test_ddp_and_fsdp2_have_the_gradient_of_one_process():
    run_two(SUPPORT / "bert_two_ranks.py")
