"""How the C library gives memory back: a training step's large temporary tensors should be reused, not unmapped."""

from __future__ import annotations

import ctypes
import os

# From malloc.h of glibc, whose mallopt(3) documents them.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_TRIM_THRESHOLD = 2**31 - 1  # as much as an int can say


def keep_freed_memory() -> bool:
    """Let memory that the main thread frees stay with this process, up to 2 GiB of it; whether that worked.

    By default glibc maps each block of 32 MiB or more anew, and every page of it costs a fault when it is first
    written, which takes several times as long as the writing. Other threads go on mapping blocks above 64 MiB: their
    heaps do not grow further. Where the environment already says how (MALLOC_MMAP_MAX_, MALLOC_TRIM_THRESHOLD_), or
    the C library is another one, nothing changes. For processes of our own: it holds for the whole process and for
    good.
    """
    if "MALLOC_MMAP_MAX_" in os.environ or "MALLOC_TRIM_THRESHOLD_" in os.environ:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD))


def give_back_freed_memory() -> None:
    """Return to the system what loading a model took and freed; glibc would keep it for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
