"""Compute a function of consecutive integers ahead of time, in threads or processes, and hand the results over in
order."""

import multiprocessing
import pickle
import queue
import sys
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Generic, TypeVar

from pretrainkit.errors import RunError

T = TypeVar("T")


def in_threads(
    function: Callable[[int], T],
    numbers: range,
    num_threads: int,
    num_ahead: int,
    *,
    interrupt: Callable[[], None] = lambda: None,
) -> Generator[T, None, None]:
    """function(n) for each n in order, computed by threads up to `num_ahead` (at least 1) numbers ahead.

    An exception of the function is raised where its result would have come. Closing the generator drops the calls that
    have not begun, calls `interrupt`, and waits for the others.
    """
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="prefetch")
    try:
        pending = deque(pool.submit(function, number) for number in numbers[:num_ahead])
        for following in numbers[num_ahead:]:
            result = pending.popleft().result()
            pending.append(pool.submit(function, following))
            yield result
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        interrupt()
        pool.shutdown()


def in_processes(
    function: Callable[[int], T], numbers: range, num_processes: int, num_ahead: int
) -> Generator[T, None, None]:
    """Like `in_threads`, with processes, each of which a thread waits for. The function and its results must be
    picklable; a script that uses this needs the usual `if __name__ == "__main__":`. Raises RunError where a process
    died."""
    context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
    processes = [_Process(context, function) for _ in range(num_processes)]
    idle: queue.SimpleQueue[_Process[T]] = queue.SimpleQueue()
    for process in processes:
        idle.put(process)

    def ask(number: int) -> T:
        process = idle.get()
        try:
            return process.ask(number)
        finally:
            idle.put(process)

    def stop() -> None:
        for process in processes:
            process.stop()

    yield from in_threads(ask, numbers, num_processes, num_ahead, interrupt=stop)


class _Process(Generic[T]):
    def __init__(self, context: BaseContext, function: Callable[[int], T]) -> None:
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, function), daemon=True)  # type: ignore[attr-defined]
        self._process.start()
        theirs.close()

    def ask(self, number: int) -> T:
        """Its answer; waits for it."""
        try:
            self._connection.send(number)
            value, error = self._connection.recv()
        except (EOFError, OSError) as failure:
            self._process.join(timeout=5)
            raise RunError(
                f"a data process died while preparing step {number} (exit code {self._process.exitcode})\n"
                "  -9 mostly means that memory ran out: use fewer processes or smaller batches"
            ) from failure
        if error is not None:
            raise error
        return value

    def stop(self) -> None:
        """End it; whoever waits for an answer learns that it died."""
        self._process.terminate()
        self._process.join()


def _serve(connection: Connection, function: Callable[[int], object]) -> None:
    """The life of a worker process: until the other side hangs up."""
    try:
        while True:
            number = connection.recv()
            try:
                answer: tuple[object, Exception | None] = (function(number), None)
            except Exception as error:  # it is raised on the other side
                answer = (None, _sendable(error))
            connection.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        return


def _sendable(error: Exception) -> Exception:
    """The error itself where it survives the journey, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except (pickle.PicklingError, TypeError, AttributeError):
        return RunError(f"{type(error).__name__}: {error}")
    return error
