"""How many heaps the C library keeps. glibc makes one for each thread that allocates, up to eight times the cores.

An answer of Prometheus is some megabytes and is decoded in whichever thread is free: each heap keeps the room of the
largest one that it ever held.
"""

import ctypes
import sys

#: mallopt's name for the number of heaps (malloc.h), and how many are enough where one thread runs at a time.
_M_ARENA_MAX = -8
_HEAPS = 2


def keep_heaps_few() -> bool:
    """Do so, before threads are started. Whether the C library knows of it: others than glibc have no such heaps."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, _HEAPS))
