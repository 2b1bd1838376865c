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
    assign,
    copy_arrays,
    fill,
    is_array,
    leaves,
    relative_difference,
    same_bits,
)
from foretune.kernel import Clock, SelfTimedLaunch

REPEAT_TOLERANCE = 1e-5
"""Relative difference of two calls up to which they gave the same: threads add in any order."""


class ResettableArguments(Protocol):
    """What a call works on, wherever it lies."""

    def reset(self) -> None:
        """Make all as it was at first."""

    def written(self) -> dict[int, Any]:
        """Return the arrays that are not as they were, by their number among all arrays."""

    def array(self, number: int) -> Any:
        """Return one of the arrays as it is now."""

    def initial(self, number: int) -> Any:
        """Return it as it was at first."""

    def overwrite(self, number: int) -> None:
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
        self._initial = (args, dict(kwargs))
        self.args, self.kwargs = copy_arrays(self._initial)
        self._arrays = [x for x in leaves((self.args, self.kwargs)) if is_array(x)]
        self._initial_arrays = [x for x in leaves(self._initial) if is_array(x)]

    def reset(self) -> None:
        """Make all as it was at first."""
        for now, initial in zip(self._arrays, self._initial_arrays, strict=True):
            if not same_bits(now, initial):
                assign(now, initial)

    def written(self) -> dict[int, Any]:
        """Return the arrays that are not as they were, by their number among all arrays."""
        pairs = zip(self._arrays, self._initial_arrays, strict=True)
        return {i: now for i, (now, initial) in enumerate(pairs) if not same_bits(now, initial)}

    def array(self, number: int) -> Any:
        """Return one of the arrays that a call works on."""
        return self._arrays[number]

    def initial(self, number: int) -> Any:
        """Return it as it was at first."""
        return self._initial_arrays[number]

    def overwrite(self, number: int) -> None:
        """Fill an array with zeros, or where it was zero at first, with ones.

        Both are numbers that most code can go on with, as indices, too.
        """
        fill(self._arrays[number], 0 if as_numpy(self._initial_arrays[number]).any() else 1)


class CallResult:
    """What came of a call.

    Attributes:
        returned: what it returned.
        written: the arrays it wrote into, by their number among the arguments' arrays.
    """

    def __init__(self, returned: Any, written: Mapping[int, Any]) -> None:
        self.returned = returned
        self.written = dict(written)

    def copy(self) -> "CallResult":
        """Return one that later calls do not change."""
        return CallResult(copy_arrays(self.returned), copy_arrays(self.written))


class ResettingLaunch(SelfTimedLaunch, ABC):
    """A launch whose arguments are put back untimed, before every call that needs it.

    Args:
        arguments: what it works on.
    """

    def __init__(self, arguments: ResettableArguments) -> None:
        self.arguments = arguments
        self._resets: bool | None = None

    @abstractmethod
    def run(self) -> Any:
        """Call once with the arguments as they are, and return what it returns."""

    def __call__(self) -> CallResult:
        """Call once with the arguments as they were at first."""
        self.arguments.reset()
        returned = self.run()
        result = CallResult(returned, self.arguments.written())
        if self._resets is None:
            result = result.copy()
            self._resets = self._reads_written_arrays(result)
        return result

    def sample_ms(self, clock: Clock, batch: int) -> float:
        """Return the mean time of ``batch`` calls in milliseconds."""
        if not self._resets:
            return self.time_ms(clock, batch)
        total = 0.0
        for _ in range(batch):
            self.arguments.reset()
            total += self.time_ms(clock, 1)
        return total / batch

    def time_ms(self, clock: Clock, batch: int) -> float:
        """Return the mean time of calls back to back with the arguments as they are."""
        return clock.sample_ms(self.run, batch)

    def _reads_written_arrays(self, result: CallResult) -> bool:
        """Whether other content of the places that it writes into changes what it does."""
        if not result.written:
            return False
        for number in result.written:
            self.arguments.overwrite(number)
        try:
            returned = self.run()
        except Exception:
            return True
        difference = relative_difference(returned, result.returned)
        for number, before in result.written.items():
            changed = as_numpy(before) != as_numpy(self.arguments.initial(number))
            now = as_numpy(self.arguments.array(number))
            difference = max(
                difference, relative_difference(now[changed], as_numpy(before)[changed])
            )
        return difference > REPEAT_TOLERANCE


class FunctionLaunch(ResettingLaunch):
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
        self.kwargs = {**arguments.kwargs, **knobs}

    def run(self) -> Any:
        """Call the function."""
        return self.function(*self.args, **self.kwargs)
