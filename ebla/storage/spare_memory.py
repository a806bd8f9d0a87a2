"""Memory that is free, but held by the allocators of this process, given back to the system.

A compaction takes tens of megabytes in pieces of all sizes, and lets go of them. The allocators (Arrow's, and the C
library's, which serves numpy and Python) keep what they got: hundreds of megabytes that nobody uses. After a flush they
may keep it: the next writes want it again, and getting it anew, page by page, cost one writer a sixth of his speed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import pyarrow as pa

__all__ = ["give_back_spare_memory"]

MUCH_BYTES = 8 << 20


def _trimmer() -> Callable[[int], int] | None:
    """Return glibc's own call for it. Other C libraries have none, and need none."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


_trim = _trimmer()


def give_back_spare_memory(after_bytes: int) -> None:
    """Give it back after work on so many bytes; not if they were few, for it takes milliseconds."""
    if after_bytes < MUCH_BYTES:
        return
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)
