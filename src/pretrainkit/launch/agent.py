"""torchrun's agent for the ranks of this machine: `python -m pretrainkit.launch.agent NUM MODULE ARGUMENTS...`.

It does the same as `torchrun --standalone --nproc-per-node NUM`, through the Python interface. So the agent prints no
traceback when a rank fails, because the rank has already printed its error.
"""

import logging
import os
import signal
import sys
import uuid
from pathlib import Path

from pretrainkit.launch.rank import LOG_FOLDER, rank_file, stop_when_orphaned


def main() -> None:
    """Start the ranks, wait for them, and exit with 0 if all of them did."""
    stop_when_orphaned()
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(sys.argv[1]),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "pretrainkit.launch.rank", *sys.argv[2:])
    except ChildFailedError as error:
        folder = Path(os.environ[LOG_FOLDER])
        for rank, failure in error.failures.items():
            if failure.exitcode == -signal.SIGKILL and not rank_file(folder, rank, "exit").exists():
                print(
                    f"error: rank {rank} was killed by SIGKILL, which the system sends if memory is used up\n"
                    "  look at the messages of `dmesg`; data.microbatch_size=1 needs less memory",
                    file=sys.stderr,
                )
        sys.exit(1)
    except SignalException:
        sys.exit(1)


if __name__ == "__main__":
    main()
