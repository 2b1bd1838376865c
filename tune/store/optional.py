"""A store that may be missing, locked or read-only: work goes on without it, after one warning."""

import os
import warnings
from collections.abc import Callable
from typing import TypeVar

from foretune.errors import ForetuneError, ForetuneWarning
from foretune.tune.store.store import Store

T = TypeVar("T")
Where = Store | str | os.PathLike[str] | bool | None
"""A store, its path or SQLAlchemy URL; None or True is the user's own, False none."""


class OptionalStore:
    """Asks a store while it works. The first failure costs a warning, and is the last question.

    Args:
        where: the store.
    """

    def __init__(self, where: Where) -> None:
        self._where: Where = where

    def ask(self, question: Callable[[Store], T], instead: T) -> T:
        """Return the store's answer; ``instead`` if there is no store, or it fails."""
        if self._where is False:
            return instead
        if not isinstance(self._where, Store):  # only now: $FORETUNE_STORE may be set late
            self._where = Store(None if self._where is True else self._where)
        try:
            return question(self._where)
        except ForetuneError as e:
            self._where = False
            warnings.warn(f"tuned results are not kept: {e}", ForetuneWarning, stacklevel=3)
            return instead
