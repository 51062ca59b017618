"""torchrun's agent for the ranks of this machine:
`python -m pretrainkit.launch.agent NUM NODES PLACE ID RESTARTS MODULE ARGUMENTS...`.

It does the same as `torchrun --nproc-per-node NUM --nnodes NODES --rdzv-backend c10d --rdzv-endpoint PLACE --rdzv-id ID
--max-restarts RESTARTS`, through the Python interface. So the agent prints no traceback when a rank fails, because the
rank has already printed its error.
"""

import logging
import os
import signal
import sys
from pathlib import Path

from pretrainkit.launch.rank import LOG_FOLDER, rank_file, stop_when_orphaned

_LAST_CALL_SECONDS = 10
"""Time in which more machines may join once there are enough."""

_REASONS: dict[int, str] = {
    signal.SIGKILL: "which the system sends if memory is used up\n"
    "  look at the messages of `dmesg`; data.microbatch_size=1 needs less memory",
    signal.SIGBUS: "which the system sends if a file that is being read got shorter or its disk fails\n"
    "  check the disk and the files of the data",
}
"""Likely causes of a signal that killed a rank, by signal."""


def main() -> None:
    """Start the ranks, wait for them, and exit with 0 if all of them did."""
    stop_when_orphaned()
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in logging.root.manager.loggerDict:  # each of torch's loggers has its own level
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    num, nodes, place, run_id, restarts, *words = sys.argv[1:]
    fewest, most = map(int, nodes.split(":"))
    if restarts != "0":
        # Otherwise, all rounds would share one store, which still has the addresses of the first round.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    config = LaunchConfig(
        min_nodes=fewest,
        max_nodes=most,
        nproc_per_node=int(num),
        run_id=run_id,
        rdzv_backend="c10d",
        rdzv_endpoint=place,
        rdzv_configs={"last_call_timeout": _LAST_CALL_SECONDS},
        max_restarts=int(restarts),
        logs_specs=DefaultLogsSpecs(os.devnull),  # ranks have logs; otherwise a folder stays in /tmp
    )
    try:
        elastic_launch(config, sys.executable)("-m", "pretrainkit.launch.rank", *words)
    except ChildFailedError as error:
        folder = Path(os.environ[LOG_FOLDER])
        for rank, failure in error.failures.items():
            reason = _REASONS.get(-failure.exitcode)
            if reason is not None and not rank_file(folder, rank, "exit").exists():
                print(f"error: rank {rank} was killed by {failure.signal_name()}, {reason}", file=sys.stderr)
        sys.exit(1)
    except SignalException:
        sys.exit(1)


if __name__ == "__main__":
    main()
