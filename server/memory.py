"""glibc's allocator, told to give back what large requests needed.

By itself it learns from every large block that is freed to keep the next one of that size: after one body of 20 MB the
process stays that much larger for good, and the threads' heaps likewise.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
LARGE_BLOCK = 1 << 20
"""From this size on a block is mapped by itself, and unmapped when it is freed."""
KEPT = 4 << 20
"""Free memory at the end of the heap that stays for the next request."""


def return_large_blocks() -> None:
    """For the whole process, from now on. Other C libraries are left as they are."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT)
