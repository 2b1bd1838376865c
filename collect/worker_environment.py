"""What differs in a process that measures: it is marked, and it keeps the memory that is freed.

By default, the C library returns large freed pieces to the system, and takes them from it again for
the next array: every page then costs a fault. How many pieces it keeps depends on the sizes freed
before. The arrays of a measuring process have the sizes of the inputs, so pieces of just that size
would be kept for the default, and none for a candidate whose temporaries are smaller. So a
measuring process keeps all of them.
"""

import ctypes
import os
import sys
from contextlib import suppress

WORKER_VARIABLE = "FORETUNE_SERVES"
"""Set in the environment of a worker process, where tuned functions must not start to tune."""
# Parameters of glibc's `mallopt`.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_MMAP_MAX = -4
_LARGEST_INT = 2**31 - 1
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
"""glibc accepts no larger one."""


def is_worker() -> bool:
    """Whether this process measures for another one, so that it must not start tuning."""
    return WORKER_VARIABLE in os.environ


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory, of any size; return whether it does."""
    if sys.platform != "linux":
        return False
    with suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        settings = {
            _MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD,
            _MMAP_MAX: 0,
            _TRIM_THRESHOLD: _LARGEST_INT,
        }
        accepted = [mallopt(name, value) == 1 for name, value in settings.items()]
        return all(accepted)
    return False
