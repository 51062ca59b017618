"""torchrun's agent for the ranks of this machine: `python -m pretrainkit.launch.agent NUM MODULE ARGUMENTS...`.

The same as `torchrun --standalone --nproc-per-node NUM`, through its Python interface, so that the failure of a rank,
which the rank has explained, is not followed by a traceback of the agent.
"""

import logging
import sys
import uuid

from pretrainkit.launch.rank import stop_when_orphaned


def main() -> None:
    """Start the ranks, wait for them, exit with 0 when all of them did."""
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
    except (ChildFailedError, SignalException):
        sys.exit(1)


if __name__ == "__main__":
    main()
