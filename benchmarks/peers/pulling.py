"""Turns a function that calls for values into an ask/tell object.

The function runs in its own thread. The thread and its caller never run at the same time.
"""

import contextlib
import queue
import random
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from foretune.errors import ForetuneError


class _Closed(BaseException):
    """Ends the thread; functions do not catch it by accident."""


class CallbackToAskTell:
    """A paused function that calls for values.

    Args:
        function: gets a callback that returns the values of configuration numbers.
        seed: seed of the global random generators, as the function sees them.
    """

    def __init__(
        self, function: Callable[[Callable[[list[int]], list[float]]], None], seed: int
    ) -> None:
        self._function = function
        self._requests: queue.Queue[list[int] | BaseException | None] = queue.Queue()
        self._answers: queue.Queue[list[float] | None] = queue.Queue()
        self._random_state = _GlobalRandomState(seed)
        self._thread: threading.Thread | None = None
        self._request: list[int] | None = None

    def pending_requests(self, observed: Mapping[int, float]) -> list[int]:
        """Continue until a value is not in ``observed``; return the numbers that it waits for.

        The list is empty when the function has ended.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, daemon=True)
            self._request = self._exchange(self._thread.start)
        while self._request is not None:
            missing = [i for i in dict.fromkeys(self._request) if i not in observed]
            if missing:
                return missing
            values = [observed[i] for i in self._request]
            self._request = None
            self._request = self._exchange(partial(self._answers.put, values))
        return []

    def close(self) -> None:
        """End the function."""
        if self._thread is not None and self._thread.is_alive():
            self._answers.put(None)
            self._thread.join(timeout=1.0)  # it may be at work, where Ctrl-C has parted the two
        self._request = None

    def _exchange(self, resume: Callable[[], None]) -> list[int] | None:
        """Resume the function; return its next request, None when it has ended."""
        with self._random_state.activated(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # overflows: failures have huge values
            resume()
            request = self._requests.get()
        if isinstance(request, BaseException):
            raise ForetuneError(f"the search failed: {request!r}") from request
        return request

    def _main(self) -> None:
        try:
            self._function(self._values)
            self._requests.put(None)
        except _Closed:
            pass
        except BaseException as e:  # the caller raises it
            self._requests.put(e)

    def _values(self, numbers: list[int]) -> list[float]:
        self._requests.put(numbers)
        answer = self._answers.get()
        if answer is None:
            raise _Closed
        return answer


class _GlobalRandomState:
    """Private states of Python's and NumPy's global random generators."""

    def __init__(self, seed: int) -> None:
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed).get_state()

    @contextlib.contextmanager
    def activated(self) -> Iterator[None]:
        """Return a context with these states; outside, the generators do not advance."""
        python, numpy, fresh = random.getstate(), np.random.get_state(), np.random.default_rng  # noqa: NPY002

        def seeded(seed: Any = None) -> np.random.Generator:
            return fresh(np.random.randint(2**31) if seed is None else seed)  # noqa: NPY002

        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        np.random.default_rng = seeded  # SciPy's Latin hypercubes would draw on the clock
        try:
            yield
        finally:
            self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            np.random.default_rng = fresh
