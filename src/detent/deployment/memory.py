"""Returns freed memory from the C library to the operating system."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["trim_heap"]


def trim_heap() -> None:
    """Hand freed memory to the system. glibc keeps up to twice the largest block that was ever freed for later, which
    after the weights of a network is tens of megabytes; other C libraries are left alone."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
