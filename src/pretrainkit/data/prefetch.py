"""Compute a function of consecutive integers ahead of time, in threads or processes, and yield the results in
order."""

import multiprocessing
import pickle
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Generic, TypeVar

from pretrainkit.errors import RunError

T = TypeVar("T")


def in_threads(
    function: Callable[[int], T], numbers: range, num_threads: int, num_ahead: int
) -> Generator[T, None, None]:
    """Yield function(n) for each n in order, computed by threads up to `num_ahead` (at least 1) numbers ahead.

    An exception of the function is raised in place of its result. Closing the generator waits for the running calls
    and cancels the others.
    """
    return _prefetch(lambda: _Thread(function), numbers, num_threads, num_ahead)


def in_processes(
    function: Callable[[int], T], numbers: range, num_processes: int, num_ahead: int
) -> Generator[T, None, None]:
    """Do the same as `in_threads`, with processes. The function and its results must be picklable; a script that uses
    this needs the usual `if __name__ == "__main__":`. Raises RunError if a process dies."""
    context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
    return _prefetch(lambda: _Process(context, function), numbers, num_processes, num_ahead)


def _prefetch(
    start_worker: "Callable[[], _Thread[T] | _Process[T]]", numbers: range, num_workers: int, num_ahead: int
) -> Generator[T, None, None]:
    workers: list[_Thread[T] | _Process[T]] = []
    pending: deque[tuple[int, _Thread[T] | _Process[T]]] = deque()
    try:
        for _ in range(num_workers):
            workers.append(start_worker())
        for i, number in enumerate(numbers[:num_ahead]):
            workers[i % num_workers].ask(number)
            pending.append((number, workers[i % num_workers]))
        for i in range(len(numbers)):
            number, worker = pending.popleft()
            result = worker.answer(number)
            if i + num_ahead < len(numbers):
                following = numbers[i + num_ahead]
                worker = workers[(i + num_ahead) % num_workers]
                worker.ask(following)
                pending.append((following, worker))
            yield result
    finally:
        for worker in workers:
            worker.stop()


class _Thread(Generic[T]):
    """A worker thread that returns results in the order of the requests."""

    def __init__(self, function: Callable[[int], T]) -> None:
        self._function = function
        self._questions: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._serve, name="prefetch", daemon=True)
        self._thread.start()

    def ask(self, number: int) -> None:
        self._questions.put(number)

    def answer(self, number: int) -> T:
        """Wait for the result of the oldest open request, which was `number`."""
        value, error = self._answers.get()
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def stop(self) -> None:
        self._is_stopping = True
        self._questions.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (number := self._questions.get()) is not None and not self._is_stopping:
            try:
                self._answers.put((self._function(number), None))
            except BaseException as error:  # raised in the consumer, which would otherwise wait forever
                self._answers.put((None, error))


class _Process(Generic[T]):
    """A worker process with the interface of `_Thread`."""

    def __init__(self, context: BaseContext, function: Callable[[int], T]) -> None:
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, function), daemon=True)  # type: ignore[attr-defined]
        self._process.start()
        theirs.close()

    def ask(self, number: int) -> None:
        try:
            self._connection.send(number)
        except OSError as error:
            raise self._worker_died(number) from error

    def answer(self, number: int) -> T:
        try:
            value, error = self._connection.recv()
        except (EOFError, OSError) as failure:
            raise self._worker_died(number) from failure
        if error is not None:
            raise error
        return value

    def stop(self) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.join()

    def _worker_died(self, number: int) -> RunError:
        self._process.join(timeout=5)
        return RunError(
            f"a data process died while preparing step {number} (exit code {self._process.exitcode})\n"
            "  -9 usually means that memory ran out: use fewer processes or smaller batches"
        )


def _serve(connection: Connection, function: Callable[[int], object]) -> None:
    """Serve requests in a worker process until the connection is closed."""
    try:
        while True:
            number = connection.recv()
            try:
                answer: tuple[object, Exception | None] = (function(number), None)
            except Exception as error:  # raised in the consumer
                answer = (None, _sendable(error))
            connection.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        return


def _sendable(error: Exception) -> Exception:
    """Return the error if it can be pickled, otherwise a RunError with its text."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - its own bytes
    except (pickle.PicklingError, TypeError, AttributeError):
        return RunError(f"{type(error).__name__}: {error}")
    return error
