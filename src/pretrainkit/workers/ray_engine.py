"""Run tasks on a Ray cluster with datatrove's executor. All machines must have access to the input and output files."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datatrove.executor.base import PipelineExecutor
from datatrove.executor.ray import RayPipelineExecutor

from pretrainkit.errors import InputError, import_optional
from pretrainkit.workers.engine import Resources, Result, Task
from pretrainkit.workers.processes import Progress, check_workers, memory_per_process
from pretrainkit.workers.task_folder import RunTask, TaskFolder, quiet_datatrove

_WORKER_BYTES = 300_000_000
"""Memory of an idle worker, requested from Ray besides the memory of the task."""
_PAUSE_SECONDS = 0.2
_END_SECONDS = 30
_CONNECT_SECONDS = 10


class _Executor(RayPipelineExecutor):
    # Ray's own method writes logs to a folder that all users of the machine share.
    _run_for_rank = PipelineExecutor._run_for_rank


@dataclass(frozen=True)
class RayEngine:
    """Engine that runs tasks on a Ray cluster, with one core each."""

    address: str | None = None
    """Address of the cluster; None: `RAY_ADDRESS`, else the cluster on this machine."""
    is_local = False

    def resources(self, workers: int | None, num_tasks: int, num_bytes: int, memory_bytes: int) -> Resources:
        """Let one task per core of the cluster run at once, or at most `workers`."""
        check_workers(workers)
        share = memory_per_process(memory_bytes, 1)
        nodes = [node["Resources"] for node in self._connected().nodes() if node["Alive"]]
        needed = memory_bytes + _WORKER_BYTES
        largest = max((node.get("memory", 0) for node in nodes if node.get("CPU", 0) >= 1), default=0)
        if largest < needed:
            raise InputError(
                f"no machine of the Ray cluster has a core and {needed / 1e6:.0f} MB for a task; the largest offers "
                f"{largest / 1e6:.0f} MB\n  give less with --memory, or start Ray with more (ray start --memory BYTES)"
            )
        cores = int(sum(node.get("CPU", 0) for node in nodes))
        return Resources(max(1, min(workers or cores, num_tasks)), share)

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        resources: Resources,
        work: Path,
        progress: Progress,
    ) -> Iterator[Result]:
        """Run the tasks as in `Engine`. Results are passed through files below `work`."""
        if not tasks:
            return
        self._connected()
        folder = TaskFolder.create(function, tasks, work)
        quiet_datatrove()
        memory_gib = (resources.memory_bytes + _WORKER_BYTES) / 2**30
        executor = _Executor(
            [RunTask(folder)],
            tasks=len(tasks),
            workers=resources.num_workers,
            mem_per_cpu_gb=memory_gib,  # datatrove multiplies it by the cores, then rounds
            logging_dir=str(folder.logs),
            log_first=False,
        )
        # The executor waits for all tasks. It runs in a thread, so that results and errors are available at once.
        thread = threading.Thread(target=executor.run, daemon=True)
        thread.start()
        try:
            yield from folder.results(len(tasks), lambda: not thread.is_alive(), _PAUSE_SECONDS)
        except BaseException:  # also Ctrl-C: no worker may start another task
            folder.stop()
            raise
        finally:
            thread.join(_END_SECONDS)
        folder.remove()

    def _connected(self) -> Any:
        """Return the module ray, connected to the cluster."""
        ray = import_optional("ray", "ray", "--engine ray")
        if ray.is_initialized():
            return ray
        address = self.address or os.environ.get("RAY_ADDRESS") or "auto"
        # Workers must find the same modules as this process.
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        try:
            _require_listener(address)
            ray.init(address=address, runtime_env={"env_vars": kept}, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            place = "on this machine" if address == "auto" else f"at {address}"
            raise InputError(
                f"no Ray cluster answers {place}: {str(error).strip().splitlines()[0]}\n"
                "  start one (ray start --head), or give the address of its head with --ray HOST:PORT"
            ) from error
        return ray


def _require_listener(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT. Ray itself would wait many minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS):
            pass
