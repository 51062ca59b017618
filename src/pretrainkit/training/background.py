"""Work on the host that training does not wait for."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Background(Generic[T]):
    """Runs one call at a time in a thread. `wait` raises its exception."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[T] | None = None

    def start(self, call: Callable[[], T]) -> None:
        """Start a call. Call `wait` first if another call was started."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        self._pending = self._pool.submit(call)

    def wait(self) -> T | None:
        """Wait for the call in progress and return its result, or raise its error. Returns None if there is no such
        call."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    @property
    def has_failed(self) -> bool:
        """True if the call in progress is known to have failed; then `wait` raises."""
        return self._pending is not None and self._pending.done() and self._pending.exception() is not None

    def close(self) -> None:
        """Wait for the call in progress and end the thread. An error that `wait` has not raised becomes a warning,
        because another error is already ending the run."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        if self.has_failed:
            assert self._pending is not None
            _log.warning("%s: %s", self._name, self._pending.exception())
        self._pending = None
