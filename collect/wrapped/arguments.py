"""Arguments of a call: what they were at first, and copies that calls may write into.

Arrays are copied; other objects are passed as they are. Every call that is checked begins with the
arguments as they were. A timed call does so only where that matters: where a call reads what it
wrote before, like a sort in place. That is found out once, with the written arrays filled with
something else: a call that only writes them gives the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from foretune.collect.wrapped.values import (
    as_numpy,
    copied,
    fill,
    is_array,
    leaves,
    put,
    relative_difference,
    same_bits,
)
from foretune.kernel import Clock, TimedLaunch

SAME = 1e-5
"""Relative difference of two calls up to which they gave the same: threads add in any order."""


class Restorable(Protocol):
    """What a call works on, wherever it lies."""

    def restore(self) -> None:
        """Make all as it was at first."""

    def written(self) -> dict[int, Any]:
        """Return the arrays that are not as they were, by their number among all arrays."""

    def array(self, number: int) -> Any:
        """Return one of the arrays as it is now."""

    def first(self, number: int) -> Any:
        """Return it as it was at first."""

    def spoil(self, number: int) -> None:
        """Fill an array with zeros, or where it was zero at first, with ones."""


class Arguments:
    """What a call takes.

    Args:
        args: positional ones; they are not written into.
        kwargs: named ones.

    Attributes:
        args: copies for a call.
        kwargs: copies for a call.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._first = (args, dict(kwargs))
        self.args, self.kwargs = copied(self._first)
        self._arrays = [x for x in leaves((self.args, self.kwargs)) if is_array(x)]
        self._arrays_at_first = [x for x in leaves(self._first) if is_array(x)]

    def restore(self) -> None:
        """Make all as it was at first."""
        for now, first in zip(self._arrays, self._arrays_at_first, strict=True):
            if not same_bits(now, first):
                put(now, first)

    def written(self) -> dict[int, Any]:
        """Return the arrays that are not as they were, by their number among all arrays."""
        pairs = zip(self._arrays, self._arrays_at_first, strict=True)
        return {i: now for i, (now, first) in enumerate(pairs) if not same_bits(now, first)}

    def array(self, number: int) -> Any:
        """Return one of the arrays that a call works on."""
        return self._arrays[number]

    def first(self, number: int) -> Any:
        """Return it as it was at first."""
        return self._arrays_at_first[number]

    def spoil(self, number: int) -> None:
        """Fill an array with zeros, or where it was zero at first, with ones.

        Both are numbers that most code can go on with, as indices, too.
        """
        fill(self._arrays[number], 0 if as_numpy(self._arrays_at_first[number]).any() else 1)


class Outcome:
    """What came of a call.

    Attributes:
        returned: what it returned.
        written: the arrays it wrote into, by their number among the arguments' arrays.
    """

    def __init__(self, returned: Any, written: Mapping[int, Any]) -> None:
        self.returned = returned
        self.written = dict(written)

    def copied(self) -> "Outcome":
        """Return one that later calls do not change."""
        return Outcome(copied(self.returned), copied(self.written))


class Restoring(TimedLaunch, ABC):
    """A launch whose arguments are put back untimed, before every call that needs it.

    Args:
        arguments: what it works on.
    """

    def __init__(self, arguments: Restorable) -> None:
        self.arguments = arguments
        self._restores: bool | None = None

    @abstractmethod
    def run(self) -> Any:
        """Call once with the arguments as they are, and return what it returns."""

    def __call__(self) -> Outcome:
        """Call once with the arguments as they were at first."""
        self.arguments.restore()
        returned = self.run()
        outcome = Outcome(returned, self.arguments.written())
        if self._restores is None:
            outcome = outcome.copied()
            self._restores = self._reads_what_it_writes(outcome)
        return outcome

    def sample_ms(self, clock: Clock, batch: int) -> float:
        """Return the mean time of ``batch`` calls in milliseconds."""
        if not self._restores:
            return self.time_ms(clock, batch)
        total = 0.0
        for _ in range(batch):
            self.arguments.restore()
            total += self.time_ms(clock, 1)
        return total / batch

    def time_ms(self, clock: Clock, batch: int) -> float:
        """Return the mean time of calls back to back with the arguments as they are."""
        return clock.sample_ms(self.run, batch)

    def _reads_what_it_writes(self, outcome: Outcome) -> bool:
        """Whether other content of the places that it writes into changes what it does."""
        if not outcome.written:
            return False
        for number in outcome.written:
            self.arguments.spoil(number)
        try:
            returned = self.run()
        except Exception:
            return True
        differ = relative_difference(returned, outcome.returned)
        for number, before in outcome.written.items():
            places = as_numpy(before) != as_numpy(self.arguments.first(number))
            now = as_numpy(self.arguments.array(number))
            differ = max(differ, relative_difference(now[places], as_numpy(before)[places]))
        return differ > SAME


class Call(Restoring):
    """A Python function with some of its arguments fixed to a configuration.

    Args:
        function: is called.
        knobs: the configuration.
        arguments: all others.
    """

    def __init__(
        self, function: Callable[..., Any], knobs: Mapping[str, Any], arguments: Arguments
    ) -> None:
        super().__init__(arguments)
        self.function = function
        self.args = arguments.args
        self.named = {**arguments.kwargs, **knobs}

    def run(self) -> Any:
        """Call the function."""
        return self.function(*self.args, **self.named)
