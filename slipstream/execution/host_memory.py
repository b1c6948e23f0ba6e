"""How the C library gives memory back on a CPU: a step's large temporary tensors should be reused, not unmapped."""

from __future__ import annotations

import ctypes
import os

# From malloc.h of glibc, whose mallopt(3) documents them.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER_TRIM = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let freed memory stay with this process, whatever its size; whether that worked.

    By default glibc maps each block of 32 MiB or more anew, and every page of it costs a fault when it is first
    written: gathering 60 MB of KV then takes several times as long as copying it. Where the environment already says
    how (MALLOC_MMAP_MAX_, MALLOC_TRIM_THRESHOLD_), or the C library is another one, nothing changes.
    """
    if "MALLOC_MMAP_MAX_" in os.environ or "MALLOC_TRIM_THRESHOLD_" in os.environ:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM))
