"""A store that may be missing, locked or read-only: work goes on without it, after one warning."""

import os
import warnings
from collections.abc import Callable
from typing import TypeVar

from foretune.errors import ForetuneError, ForetuneWarning
from foretune.tune.store.store import Store

T = TypeVar("T")
StoreLocation = Store | str | os.PathLike[str] | bool | None
"""A store, its path or SQLAlchemy URL; None or True is the user's own, False none."""


class FallibleStore:
    """Asks a store while it works. The first failure costs a warning, and is the last question.

    Args:
        location: the store.
    """

    def __init__(self, location: StoreLocation) -> None:
        self._location: StoreLocation = location

    def query(self, question: Callable[[Store], T], default: T) -> T:
        """Return the store's answer; ``default`` if there is no store, or it fails."""
        if self._location is False:
            return default
        if not isinstance(self._location, Store):  # only now: $FORETUNE_STORE may be set late
            self._location = Store(None if self._location is True else self._location)
        try:
            return question(self._location)
        except ForetuneError as e:
            self._location = False
            warnings.warn(f"tuned results are not kept: {e}", ForetuneWarning, stacklevel=3)
            return default
