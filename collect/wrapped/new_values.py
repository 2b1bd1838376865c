"""Which of a function's arguments get new values in every round, and how.

New values show a candidate that remembers results, or is right for the given ones only. But the
default must accept them: whole numbers may be indices, sizes or codes, and fractions may depend on
each other. So ways to draw are tried, from the freest to none, until the default accepts one.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

import numpy as np

from foretune.collect.wrapped import whole_numbers
from foretune.collect.wrapped.values import Draw, blend, rescale


@dataclass(frozen=True)
class DrawnKinds:
    """Which kinds of numbers the arguments have that may be drawn."""

    fractions: bool
    whole_numbers: bool


@dataclass(frozen=True)
class NewValues:
    """How fractions and whole numbers are drawn; None keeps the given ones."""

    fractions: Draw | None = None
    whole: Draw | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Both as names, for another process."""
        return tuple("" if draw is None else draw.__name__ for draw in (self.fractions, self.whole))

    @classmethod
    def from_names(cls, names: Sequence[str]) -> "NewValues":
        """Invert `names`."""
        fractions, whole = names
        return cls(_DRAWS.get(fractions), _DRAWS.get(whole))

    def describe(self, kinds: DrawnKinds) -> str:
        """Return on which values a comparison rests."""
        if self.fractions is None and self.whole is None:
            return GIVEN_VALUES_ONLY
        if not kinds.whole_numbers:
            return _FRACTIONS[self.fractions]
        if not kinds.fractions:
            return _ONLY_WHOLE_NUMBERS[self.whole]
        if self.fractions is blend and self.whole is whole_numbers.change:
            return _FRACTIONS[blend]
        return f"{_FRACTIONS[self.fractions]}, {_WHOLE_NUMBERS[self.whole]}"


_DRAWS: dict[str, Draw] = {
    draw.__name__: draw for draw in (blend, rescale, whole_numbers.change, whole_numbers.reorder)
}
GIVEN_VALUES = "the given values only"
"""Begins the description of a verification without new values."""
GIVEN_VALUES_ONLY = f"{GIVEN_VALUES}: no argument has numbers to draw, or the default needs them"
_FRACTIONS: dict[Draw | None, str] = {
    blend: "new values in every round",
    rescale: "the given values times random factors",
    None: "the given fractions",
}
_WHOLE_NUMBERS: dict[Draw | None, str] = {
    whole_numbers.change: "new whole numbers",
    whole_numbers.reorder: "whole numbers in new orders",
    None: "the given whole numbers",
}
_ONLY_WHOLE_NUMBERS: dict[Draw | None, str] = {
    whole_numbers.change: "new values in every round",
    whole_numbers.reorder: "the given values in new orders",
}
_WAYS = [
    NewValues(fractions, whole)
    for fractions in (blend, rescale, None)
    for whole in (whole_numbers.change, whole_numbers.reorder, None)
]
"""The freest way first; the last one keeps all values."""


def find_new_values(kinds: DrawnKinds, accepts: Callable[[NewValues], bool]) -> NewValues:
    """Return the first way to draw that the default accepts."""
    ways = dict.fromkeys(
        NewValues(
            way.fractions if kinds.fractions else None, way.whole if kinds.whole_numbers else None
        )
        for way in _WAYS
    )
    for way in ways:
        if way == NewValues():
            break
        with suppress(Exception), np.errstate(all="ignore"):
            if accepts(way):
                return way
    return NewValues()


class _TimeIsUp(BaseException):
    """The time limit is over. It is no Exception, because code that runs may suppress those."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in Python code that takes longer; only the main thread has a limit."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TimeIsUp:
        raise TimeoutError(f"it takes longer than {seconds:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
