"""Support for compiled code: sizes that change from batch to batch, and functions that torch stops compiling."""

import logging
import sys
from types import TracebackType
from typing import Self

from torch import Tensor

_COMPILER_LOG = logging.getLogger("torch._dynamo.convert_frame")


def vary(*tensors: Tensor) -> None:
    """Declare that the first dimension of these tensors, arguments of a compiled module, changes from batch to batch.

    Otherwise torch assumes that it is fixed, and compiles the module again when the second batch has another size.
    """
    if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled; importing it takes seconds
        from torch._dynamo import maybe_mark_dynamic

        for tensor in tensors:
            maybe_mark_dynamic(tensor, 0)


class UncompiledFunctions(logging.Handler):
    """Context manager that collects functions that torch runs uncompiled because they have too many graphs. Torch only
    writes a warning to its own log, once for each function."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("torch._dynamo hit config") and isinstance(record.args, tuple):
            _, limit, function, reason = (str(arg).strip() for arg in record.args[:4])
            self._texts.append(
                f"torch.compile has made {limit} graphs of {function}, which is the limit, and now runs it uncompiled, "
                f"which is slower; the last graph was for: {reason}; parallel.compile=off saves the time "
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
