"""Functions compiled by Numba, once on a machine; importing this needs it (the extra ``cpu``)."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Return ``function`` compiled by Numba; kept on disk where there is a place for it."""
    make: Any = partial(numba.njit, nogil=True, error_model="numpy")
    try:
        return make(cache=True)(function)
    except RuntimeError:  # there is no folder to write the cache to
        return make()(function)
