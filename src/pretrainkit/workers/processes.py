"""Processes and memory of corpus stages: run tasks in one or several processes."""

import gc
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Any, Protocol, TypeVar

from pretrainkit.errors import DataError, RunError

DEFAULT_MEMORY = 1_000_000_000
"""Default memory of all processes of a stage together, in bytes."""
PROCESS_BYTES = 60_000_000
"""Resident size of an idle worker: Python, NumPy, a decompressor, and its share of the resource tracker process."""
_SPAWN_WORTH_BYTES = 32_000_000

Task = TypeVar("Task")
Result = TypeVar("Result")


class Progress(Protocol):
    """Receiver of the progress of a stage. The library prints nothing; the command line passes one that prints."""

    def stage(self, name: str, total: int, unit: str) -> None:
        """Begin a new stage of `total` units."""

    def advance(self, amount: int) -> None:
        """Report that `amount` more units are done."""

    def note(self, message: str) -> None:
        """Show a message, such as a warning or a count of kept results."""


class Quiet:
    """Receiver that shows nothing."""

    def stage(self, name: str, total: int, unit: str) -> None: ...

    def advance(self, amount: int) -> None: ...

    def note(self, message: str) -> None: ...


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_workers(workers: int | None) -> None:
    """Raise DataError if the number of workers is below 1."""
    if workers is not None and workers < 1:
        raise DataError(f"--workers is {workers}\n  give at least 1, or leave it out to use all cores")


def num_processes(workers: int | None, num_tasks: int, num_bytes: int, memory_bytes: int) -> int:
    """Return the number of processes to use: `workers` (None: the number of cores), but at most the number of tasks and
    as many as the memory allows. With None and small input, it is 1.
    """
    check_workers(workers)
    if workers is None and num_bytes < _SPAWN_WORTH_BYTES:
        return 1
    # The parent process also needs a share of the memory.
    fitting = max(1, (memory_bytes - PROCESS_BYTES) // (2 * PROCESS_BYTES))
    return max(1, min(workers or available_cores(), num_tasks, fitting))


def memory_per_process(memory_bytes: int, processes: int) -> int:
    """Return the bytes that each of `processes` may use beyond its idle size. Raises DataError if they are too few."""
    idle = PROCESS_BYTES * (processes + 1 if processes > 1 else 1)
    if memory_bytes < idle + 16_000_000 * processes:
        raise DataError(
            f"{memory_bytes / 1e6:.0f} MB of memory are not enough for {processes} worker{'s' * (processes > 1)}\n"
            f"  give at least --memory {math.ceil((idle + 16_000_000 * processes) / 1e6)}MB"
        )
    return (memory_bytes - idle) // processes


def parse_bytes(text: str) -> int:
    """Parse a size such as "300MB", "2GB", "1.5G" or "4096" with decimal units. Return bytes. Raises DataError for
    other texts."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)[bB]?\s*", text)
    if not match:
        raise DataError(f"{text!r} is not a size\n  write it like 300MB or 2GB")
    # The index of the letter is the power of 1000.
    return int(float(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " "))


def run_tasks(
    function: Callable[[Task], Result], tasks: Iterable[Task], processes: int, *, in_order: bool = False
) -> Iterator[Result]:
    """Yield `function(task)` for all tasks, each as soon as it is finished, or `in_order` of the tasks.

    With one process, tasks run in this process. Otherwise worker processes are spawned, so `function` and `tasks` must
    be picklable. They end with their parent, even if it is killed. Raises RunError if a worker died, for example for
    lack of memory.
    """
    if processes <= 1:
        yield from map(function, tasks)
        return
    with _pool(processes) as pool:
        # Only a few tasks are submitted at a time, so that little work is pending after an error or an interrupt.
        left = iter(tasks)
        pending = [pool.submit(function, task) for task in islice(left, 2 * processes)]
        while pending:
            done = pending[:1] if in_order else wait(pending, return_when=FIRST_COMPLETED).done
            for future in done:
                pending.remove(future)
                yield future.result()
            pending += [pool.submit(function, task) for task in islice(left, len(done))]


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable Python's garbage collector in the block. It would repeatedly visit many new objects without cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of spawned worker processes for the block."""
    from multiprocessing import get_context

    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_follow_parent)
    try:
        yield pool
    except BrokenProcessPool as error:
        raise RunError(
            "a worker process died, most likely for lack of memory\n"
            "  run the same command again with fewer --workers or less --memory; finished parts are kept"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _follow_parent() -> None:
    """Initialize a worker: it ends without a traceback on an interrupt, or when its parent ends."""
    from multiprocessing import parent_process
    from multiprocessing.connection import wait as wait_for

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def handled_signals(names: Sequence[str], handler: Callable[[int, FrameType | None], Any] | int) -> Iterator[None]:
    """Context in which `handler` gets these signals, as far as the system has them. In another thread than the main
    thread, where Python does not allow handlers, nothing changes."""
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [number for name in names if (number := getattr(signal.Signals, name, None)) is not None]
    before = {number: signal.signal(number, handler) for number in numbers if is_main}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)
