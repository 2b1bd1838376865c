"""A store whose failures stop nobody: results wait until it can be written again.

A database may be away for a while, or locked by another process. What could not be written is kept
in memory. It is written before the next result, and when the process ends. After a failure that
took long, the store is left alone for as long, so that at most half of the time is lost.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from foretune.errors import ForetuneError, StoreError, warn
from foretune.redaction import redact
from foretune.tune.store.store import Store
from foretune.values import counted

T = TypeVar("T")
StoreLocation = Store | str | os.PathLike[str] | bool | None
"""A store, its path, or a PostgreSQL URL; None or True is the user's own store, False is none."""
QUICK_FAILURE_S = 0.2
"""After a failure that took less, the next result is written at once."""
_UNWRITTEN: "set[FallibleStore]" = set()
"""Stores for which results wait; they stay alive until these are written."""


def location_name(location: StoreLocation) -> str | None:
    """Return a location's path or URL, without passwords.

    It is empty for the user's own store, and None if there is no store.
    """
    if location is False:
        return None
    if location is None or location is True:
        return ""
    if isinstance(location, Store):
        return location.name
    return redact(os.fspath(location))


class FallibleStore:
    """A store that may fail, with one warning. Threads may share it."""

    def __init__(self, location: StoreLocation) -> None:
        self._location: StoreLocation = location
        self._waiting: list[Callable[[Store], object]] = []
        self._retry_at = 0.0
        self._has_warned = False
        self._lock = threading.RLock()

    @property
    def is_used(self) -> bool:
        """Whether there is a store, and it has all results."""
        return self._location is not False and not self._waiting

    def query(self, question: Callable[[Store], T], default: T) -> T:
        """Return the store's answer; ``default`` if there is no store, or it fails."""
        if self._location is False or time.monotonic() < self._retry_at:
            return default
        started_at = time.monotonic()
        try:
            return question(self._store())
        except ForetuneError as e:
            self._report(e, started_at)
            return default

    def write(self, action: Callable[[Store], T], default: T) -> T:
        """Write to the store and return its answer.

        If it fails, return ``default`` and keep the action, which is then repeated later.
        """
        if self._location is False:
            return default
        with self._lock:
            if not self._write_waiting():
                self._keep(action)
                return default
            started_at = time.monotonic()
            try:
                return action(self._store())
            except StoreError as e:
                self._keep(action)
                self._report(e, started_at)
            except ForetuneError as e:  # it will not succeed later, either
                self._report(e, started_at)
            return default

    def write_at_exit(self) -> None:
        """Write what is still waiting; warn if that fails."""
        self._retry_at = 0.0
        with self._lock:
            self._store().close()  # its connection may have been closed by the end of the process
            if not self._write_waiting():
                warn(f"{counted(len(self._waiting), 'result')} could not be stored")
            self._store().close()

    def forget_waiting(self) -> None:
        """Forget, in a child process, what its parent will write."""
        self._lock = threading.RLock()
        self._waiting = []

    def _keep(self, action: Callable[[Store], object]) -> None:
        self._waiting.append(action)
        _UNWRITTEN.add(self)

    def _write_waiting(self) -> bool:
        """Write what is waiting, oldest first; return whether nothing waits any more."""
        if self._waiting and time.monotonic() < self._retry_at:
            return False
        while self._waiting:
            started_at = time.monotonic()
            try:
                self._waiting[0](self._store())
            except StoreError as e:
                self._report(e, started_at)
                return False
            except ForetuneError as e:
                self._report(e, started_at)
            self._waiting.pop(0)
        _UNWRITTEN.discard(self)
        return True

    def _store(self) -> Store:
        location = self._location
        if not isinstance(location, Store):  # only now: $FORETUNE_STORE may be set late
            location = Store(None if isinstance(location, bool) else location)
            self._location = location
        return location

    def _report(self, error: ForetuneError, started_at: float) -> None:
        """Warn at the first failure; leave the store alone for as long as a slow failure took."""
        now = time.monotonic()
        took_s = now - started_at
        if took_s > QUICK_FAILURE_S:
            self._retry_at = now + took_s
        if not self._has_warned:
            self._has_warned = True
            # one place, so that a second store of the same name is silent
            warn(
                f"tuned results are not stored: {error} (they wait in memory until it works again)",
                stacklevel=1,
            )


def _write_waiting_at_exit() -> None:
    for store in list(_UNWRITTEN):
        store.write_at_exit()


def _after_fork_in_child() -> None:
    for store in list(_UNWRITTEN):
        store.forget_waiting()
    _UNWRITTEN.clear()


atexit.register(_write_waiting_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
