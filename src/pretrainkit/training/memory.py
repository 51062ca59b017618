"""What becomes of freed memory on a CPU.

A training step frees and asks for the same large arrays again and again. The C library of Linux gives each back to the
system at once and gets it anew, page by page and zeroed: a tenth of a T5 step, a quarter of one of transformers'
(measured: benchmarks/t5_step.py). Kept, the memory is there for the next step. Its pages are 2 MB instead of 4 kB where
the system gives such pages to those who ask for them, as most Linuxes do: that is a twentieth of a 4M step.
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
"""The end of the heap stays, it grows by 64 MB at least, and no array has a mapping of its own."""
_HUGE_ROOM = 1 << 30
"""Bytes of addresses that are asked to have huge pages: those that arrays come from first. A page is taken when it is
written to, not before."""
_HUGE_PAGE, _MADV_HUGEPAGE = 2 << 20, 14
_RETURN = {_TRIM_THRESHOLD: 64 << 20, _TOP_PAD: 128 << 10, _MMAP_MAX: 1 << 16, _MMAP_THRESHOLD: 32 << 20}
"""Where the C library's own adjustment ends up in a process with large arrays; it is off once anything was set."""


@contextmanager
def freed_memory_kept(device: torch.device) -> Iterator[bool]:
    """Within it the C library keeps what this process frees; afterwards all of that goes back to the system.

    Says whether it does: not for other devices than a CPU, nor where the user has set the C library's own variables,
    nor where it has no `mallopt`.
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
    """For the memory at the end of the heap. Where the system does not have them, or has no memory, nothing happens."""
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    place = library.malloc(_HUGE_ROOM)
    if place is None:
        return
    # Only whole huge pages can be asked for: up from the beginning, down from the end.
    start, stop = -(-place // _HUGE_PAGE) * _HUGE_PAGE, (place + _HUGE_ROOM) // _HUGE_PAGE * _HUGE_PAGE
    library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _MADV_HUGEPAGE)
    library.free(place)


@cache
def _functions() -> tuple[Callable[[int, int], int], Callable[[int], int]] | None:
    """`mallopt` and `malloc_trim`; None where the C library is another one."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    try:
        return library.mallopt, library.malloc_trim
    except AttributeError:
        return None
