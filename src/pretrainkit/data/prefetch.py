"""Compute a function of consecutive integers ahead of time, in threads or processes, and hand the results over in
order."""

import collections
import multiprocessing
import pickle
import sys
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from pretrainkit.errors import RunError

T = TypeVar("T")


def in_threads(
    function: Callable[[int], T], numbers: range, num_threads: int, num_ahead: int
) -> Generator[T, None, None]:
    """function(n) for each n, computed by threads up to `num_ahead` numbers ahead.

    An exception of the function is raised where its result would have come. Closing the iterator waits for the calls
    that have begun and drops the others.
    """
    pending: collections.deque[Future[T]] = collections.deque()
    upcoming = iter(numbers)
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="prefetch")
    try:
        for number in upcoming:
            pending.append(pool.submit(function, number))
            if len(pending) >= num_ahead:
                break
        while pending:
            result = pending.popleft().result()
            for number in upcoming:
                pending.append(pool.submit(function, number))
                break
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def in_processes(
    function: Callable[[int], T], numbers: range, num_processes: int, num_ahead: int
) -> Generator[T, None, None]:
    """Like `in_threads`, with processes. The function and its results must be picklable; a script that uses this
    needs the usual `if __name__ == "__main__":`.

    Raises:
        RunError: A process died.
    """
    context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
    workers: list[_Worker[T]] = []
    pending: collections.deque[tuple[int, _Worker[T]]] = collections.deque()
    upcoming = iter(numbers)
    try:
        workers = [_Worker(context, function) for _ in range(num_processes)]
        free = collections.deque(workers * -(-num_ahead // num_processes))
        for number in upcoming:
            pending.append((number, free.popleft()))
            pending[-1][1].ask(number)
            if not free:
                break
        while pending:
            number, worker = pending.popleft()
            result = worker.answer(number)
            for following in upcoming:
                worker.ask(following)
                pending.append((following, worker))
                break
            yield result
    finally:
        for worker in workers:
            worker.stop()


class _Worker(Generic[T]):
    """One process that answers the numbers it is asked in their order."""

    def __init__(self, context: multiprocessing.context.BaseContext, function: Callable[[int], T]) -> None:
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, function), daemon=True)  # type: ignore[attr-defined]
        self._process.start()
        theirs.close()

    def ask(self, number: int) -> None:
        try:
            self._connection.send(number)
        except OSError as error:
            raise self._death(number) from error

    def answer(self, number: int) -> T:
        try:
            is_result, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._death(number) from error
        if not is_result:
            raise value
        return value

    def stop(self) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.join()

    def _death(self, number: int) -> RunError:
        self._process.join(timeout=5)
        return RunError(
            f"a data process died while preparing step {number} (exit code {self._process.exitcode})\n"
            "  -9 mostly means that memory ran out: use fewer processes or smaller batches"
        )


def _serve(connection: Connection, function: Callable[[int], object]) -> None:
    """The life of a worker process: until the other side hangs up."""
    try:
        while True:
            number = connection.recv()
            try:
                answer: tuple[bool, object] = (True, function(number))
            except Exception as error:  # it is raised on the other side
                answer = (False, _sendable(error))
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
