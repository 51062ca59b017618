"""Handling of freed memory on a CPU.

A training step frees and allocates the same large arrays again and again. The C library of Linux returns each one to
the system at once and gets it back page by page and zeroed. This costs a tenth of a T5 step, and a quarter of a step of
the model in transformers (measured by benchmarks/t5_step.py). If the memory is kept, the next step can reuse it. Its
pages have 2 MB instead of 4 kB if the system gives such pages on request, as most Linux systems do; that saves a
twentieth of a 4M step.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

from pretrainkit.dist.devices import reads_at_once

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4
"""Numbers of settings in `mallopt(3)`."""
_KEEP = {_TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 << 20, _MMAP_MAX: 0}
"""Keep the end of the heap, grow it by at least 64 MB, and give no array a mapping of its own."""
_HUGE_BYTES = 1 << 30
"""Bytes of address space for which huge pages are requested; arrays are allocated there first. A page is not taken
before it is written to."""
_HUGE_PAGE, _MADV_HUGEPAGE = 2 << 20, 14
_RETURN = {_TRIM_THRESHOLD: 64 << 20, _TOP_PAD: 128 << 10, _MMAP_MAX: 1 << 16, _MMAP_THRESHOLD: 32 << 20}
"""The values that the C library's own adjustment reaches in a process with large arrays; setting any value disables
that adjustment."""


@contextmanager
def freed_memory_kept(device: torch.device) -> Iterator[bool]:
    """Make the C library keep memory that this process frees, while the context is active; then return it to the
    system.

    Yields True if it does. It does not on devices other than CPUs, if the user has set the C library's own variables,
    or if the C library has no `mallopt`.
    """
    is_set = any(name.startswith("MALLOC_") for name in os.environ) or "GLIBC_TUNABLES" in os.environ
    functions = None if is_set or not reads_at_once(device) else _functions()
    if functions is None:
        yield False
        return
    mallopt, trim = functions
    for number, value in _KEEP.items():
        mallopt(number, value)
    _ask_for_huge_pages()
    try:
        yield True
    finally:
        for number, value in _RETURN.items():
            mallopt(number, value)
        trim(0)


def _ask_for_huge_pages() -> None:
    """Request huge pages for the memory at the end of the heap. Does nothing if the system lacks them or has no
    memory."""
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    address = library.malloc(_HUGE_BYTES)
    if address is None:
        return
    # Requests must cover whole huge pages: round the start up and the end down.
    start, stop = -(-address // _HUGE_PAGE) * _HUGE_PAGE, (address + _HUGE_BYTES) // _HUGE_PAGE * _HUGE_PAGE
    library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _MADV_HUGEPAGE)
    library.free(address)


@cache
def _functions() -> tuple[Callable[[int, int], int], Callable[[int], int]] | None:
    """Return `mallopt` and `malloc_trim`, or None if the C library does not have them."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    try:
        return library.mallopt, library.malloc_trim
    except AttributeError:
        return None
