"""Around compiled code: sizes that change from batch to batch, and what torch gives up compiling."""

import logging
import sys
from types import TracebackType
from typing import Self

from torch import Tensor

_COMPILER_LOG = logging.getLogger("torch._dynamo.convert_frame")


def vary(*tensors: Tensor) -> None:
    """Declare that the first dimension of these tensors, arguments of a compiled module, changes from batch to batch.

    Otherwise torch takes it for fixed, and compiles the module a second time when the second batch is of another size.
    """
    if "torch._dynamo" in sys.modules:  # else nothing is compiled; to import it takes seconds
        from torch._dynamo import maybe_mark_dynamic

        for tensor in tensors:
            maybe_mark_dynamic(tensor, 0)


class GivenUp(logging.Handler):
    """Context manager that collects what torch runs uncompiled because it has made too many graphs of it. Torch only
    writes a warning into its own log, once for each function."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("torch._dynamo hit config") and isinstance(record.args, tuple):
            _, limit, function, reason = (str(arg).strip() for arg in record.args[:4])
            self._texts.append(
                f"torch.compile has made {limit} graphs of {function}, the most that are allowed, and now runs it "
                f"uncompiled, which is slower; the last one was for: {reason}; parallel.compile=off saves the time "
                "that compiling takes"
            )

    def take(self) -> list[str]:
        """Return the messages since the last call."""
        texts, self._texts = self._texts, []
        return texts

    def __enter__(self) -> Self:
        _COMPILER_LOG.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _COMPILER_LOG.removeHandler(self)
