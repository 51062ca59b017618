"""torchrun's agent for the ranks of this machine:
`python -m pretrainkit.launch.agent NUM NODES PLACE ID RESTARTS MODULE ARGUMENTS...`.

It does the same as `torchrun --nproc-per-node NUM --nnodes NODES --rdzv-backend c10d --rdzv-endpoint PLACE --rdzv-id ID
--max-restarts RESTARTS`, through the Python interface. So the agent prints no traceback when a rank fails, because the
rank has already printed its error. Without PLACE (an empty word), all ranks are on this machine, and only this machine
can connect to them.
"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C prints no traceback while torch is loaded

import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

from pretrainkit.launch.rank import LOG_FOLDER, rank_file, stop_when_orphaned

_LAST_CALL_SECONDS = 10
"""Time in which more machines may join once there are enough."""

_THIS_MACHINE, _LOOPBACK = "this-machine", "127.0.0.1"

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
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    rendezvous_handler_registry.register(_THIS_MACHINE, _meeting_on_this_machine)
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
        rdzv_backend="c10d" if place else _THIS_MACHINE,
        rdzv_endpoint=place,
        local_addr=None if place else _LOOPBACK,
        rdzv_configs={"last_call_timeout": _LAST_CALL_SECONDS},
        max_restarts=int(restarts),
        logs_specs=DefaultLogsSpecs(os.devnull),  # ranks have logs; otherwise a folder stays in /tmp
    )
    _report_killed_ranks()
    try:
        elastic_launch(config, sys.executable)("-m", "pretrainkit.launch.rank", *words)
    except (ChildFailedError, SignalException, KeyboardInterrupt):
        sys.exit(1)


def _report_killed_ranks() -> None:
    """Let torch's agent report at once why a rank was killed: elastic agents start their ranks again by themselves."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    monitor, folder = LocalElasticAgent._monitor_workers, Path(os.environ[LOG_FOLDER])

    def reporting(agent: Any, worker_group: Any) -> Any:
        result = monitor(agent, worker_group)
        for rank, failure in result.failures.items():
            reason = _REASONS.get(-failure.exitcode)
            # A rank that wrote its exit code was ended on purpose. Ranks of this machine number their files from 0.
            if reason is not None and not rank_file(folder, failure.local_rank, "exit").exists():
                print(f"error: rank {rank} was killed by {failure.signal_name()}, {reason}", file=sys.stderr)
        return result

    LocalElasticAgent._monitor_workers = reporting  # type: ignore[method-assign]


def _meeting_on_this_machine(parameters: Any) -> Any:
    """Return torch's rendezvous with its state in the memory of this process. That of torchrun is a server that anybody
    can reach over the network, and its content is unpickled."""
    from torch.distributed import HashStore, TCPStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    def store_of_ranks(master_addr: Any, master_port: Any) -> TCPStore:
        listener = socket.create_server((_LOOPBACK, master_port))  # a TCPStore of its own would listen on all addresses
        port = listener.getsockname()[1]
        return TCPStore(_LOOPBACK, port, is_master=True, multi_tenant=True, master_listen_fd=listener.detach())

    class Memory(C10dRendezvousBackend):
        name = _THIS_MACHINE

    store = HashStore()
    handler = create_handler(store, Memory(store, parameters.run_id), parameters)
    handler._create_tcp_store_server = store_of_ranks  # type: ignore[method-assign]
    return handler


if __name__ == "__main__":
    main()
