"""One process = two with DDP = two with FSDP2, in the gradient of a global batch, for three families."""

import os
import subprocess
import sys
from pathlib import Path


def test_ddp_and_fsdp2_have_the_gradient_of_one_process():
    script = Path(__file__).with_name("t5_two_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
