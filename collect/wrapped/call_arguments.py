"""Arguments of a call: their initial content, and copies that calls may write into.

Arrays, tables and generators of random numbers are copied; other objects are passed as they are.
Arguments are reset before every checked call. Timed calls need a reset only if a call reads what an
earlier one wrote, like a sort in place. One test decides: the written arrays are overwritten; if
the next call gives the same result, it only writes them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from foretune.collect.wrapped import values as arrays
from foretune.collect.wrapped.shared_memory import Effects, shared_memory
from foretune.kernel import Clock, SelfTimedLaunch, WrongResult

CALLS_WITH_NOTES = 2
"""Number of first calls whose memory is compared. Both are checks, no timed calls: a result that is
kept would change what the next call allocates."""
REPEAT_TOLERANCE = 1e-5  # maximum relative difference of equal results: threads add in any order


class Arguments:
    """Positional and named arguments of a Python call; ``args`` and ``kwargs`` are its copies."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._initial = (args, dict(kwargs))
        self.initial_arrays = [x for x in arrays.leaves(self._initial) if arrays.is_array(x)]

        # Calls work on copies, which `reset` restores.
        self.args, self.kwargs = arrays.copy_arrays(self._initial)
        copies = list(arrays.leaves((self.args, self.kwargs)))
        self._arrays = [leaf for leaf in copies if arrays.is_array(leaf)]
        generators = [leaf for leaf in copies if arrays.is_generator(leaf)]
        self._generators = [(leaf, arrays.generator_state(leaf)) for leaf in generators]

    @property
    def elements(self) -> int:
        """Return the number of elements of all arrays."""
        return sum(arrays.as_numpy(x).size for x in self.initial_arrays)

    @property
    def has_generators(self) -> bool:
        """Whether random generators are among the arguments, whose state has to be reset."""
        return bool(self._generators)

    @property
    def arrays(self) -> list[Any]:
        """Return the arrays that a call reads and may write into."""
        return self._arrays

    def reset(self) -> None:
        """Restore the initial content, and the state of generators of random numbers."""
        for generator, state in self._generators:
            arrays.set_generator_state(generator, state)
        for now, initial in zip(self._arrays, self.initial_arrays, strict=True):
            # Comparing plain numbers would take longer than copying them.
            if arrays.is_plain_array(now) or not arrays.same_bits(now, initial):
                arrays.assign(now, initial)

    def written(self) -> dict[int, Any]:
        """Return the arrays that differ from their initial content, by array number."""
        pairs = enumerate(zip(self._arrays, self.initial_arrays, strict=True))
        return {i: now for i, (now, initial) in pairs if not arrays.same_bits(now, initial)}

    def array(self, number: int) -> Any:
        """Return the current content of an array."""
        return self._arrays[number]

    def overwrite(self, number: int) -> None:
        """Fill an array with zeros (ones if it was zero), which most code accepts as indices."""
        was_zero = not arrays.as_numpy(self.initial_arrays[number]).any()
        arrays.assign(self._arrays[number], int(was_zero))


@dataclass(eq=False)
class CallResult:
    """Return value of a call, and the arrays it wrote, by their number among all arrays.

    ``effects`` says what the call does besides, for example that its output shares memory.
    """

    returned: Any
    written: dict[int, Any]
    effects: Effects = frozenset()

    def copy(self) -> "CallResult":
        """Return a copy that later calls do not change.

        Raises WrongResult if the result still changes after the call, for example in a thread.
        """
        early = arrays.samples(self.returned)
        returned, written = arrays.copy_arrays((self.returned, self.written), with_objects=True)
        if not arrays.have_samples(returned, early):
            raise WrongResult("its output still changed after it had returned")
        return CallResult(returned, written, self.effects)


@dataclass(eq=False)
class ExpectedResult(CallResult):
    """The correct result.

    Attributes:
        layout: a result of the default on the same arguments, whose classes and types of numbers
            others must have; None if it is not known.
        input_elements: number of elements of all arrays among the arguments.
        shift: how far from 0 the arguments' numbers are, relative to their differences.
    """

    layout: CallResult | None = None
    input_elements: int = 1
    shift: float = 1.0


class ResettingLaunch(SelfTimedLaunch, ABC):
    """A launch that resets its arguments, untimed, before every call that needs it."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self._resets: bool | None = None
        self._first: Any = None  # kept until the second call, whose result must be elsewhere
        self._calls = 0
        self._effects: Effects = frozenset()

    @abstractmethod
    def run(self) -> Any:
        """Call once without a reset and return the result."""

    def __call__(self) -> CallResult:
        """Reset the arguments and call once."""
        self.arguments.reset()
        random_state = arrays.global_random_state()
        returned = self.run()
        self._note_effects(returned, random_state)
        result = CallResult(returned, self.arguments.written(), self._effects)
        if self._resets is None:
            result = result.copy()
            self._resets = self._reads_written_arrays(result)
        return result

    def once(self) -> CallResult:
        """Reset the arguments, call once, and return a copy of the result."""
        self.arguments.reset()
        random_state = arrays.global_random_state()
        returned = self.run()
        self._note_effects(returned, random_state)
        return CallResult(returned, self.arguments.written(), self._effects).copy()

    def _note_effects(self, returned: Any, random_state: int) -> None:
        """Note what the results of the first two calls share their memory with."""
        self._calls += 1
        if self._calls > CALLS_WITH_NOTES:
            return
        self._effects |= shared_memory(returned, self.arguments.arrays, earlier=self._first)
        if arrays.global_random_state() != random_state:
            self._effects |= {"it changes the state of the global generators of random numbers"}
        self._first = returned if self._calls < CALLS_WITH_NOTES else None

    def sample_ms(self, clock: Clock, batch: int) -> float:
        """Return the mean time of ``batch`` calls in milliseconds."""
        if not self._resets:
            return self.time_ms(clock, batch)
        total = 0.0
        for _ in range(batch):
            self.arguments.reset()
            total += self.time_ms(clock, 1)
        return total / batch

    def reset(self) -> None:
        """Restore the arguments' initial content, which may have been replaced."""
        self.arguments.reset()

    def output(self, returned: Any) -> CallResult:
        """Return the last call's result."""
        return CallResult(returned, self.arguments.written(), self._effects).copy()

    def time_ms(self, clock: Clock, batch: int) -> float:
        """Return the mean time of back-to-back calls without a reset, in ms."""
        return clock.sample_ms(self.run, batch)

    def _reads_written_arrays(self, result: CallResult) -> bool:
        """Whether the content of the written arrays changes the result.

        What is neither returned nor written now may be written for other values.
        """
        if not result.written:
            return result.returned is None
        for number in result.written:
            self.arguments.overwrite(number)
        try:
            returned = self.run()
        except Exception:
            return True
        difference = arrays.relative_difference(returned, result.returned)
        for number, before in result.written.items():
            old = arrays.as_numpy(before)
            changed = old != arrays.as_numpy(self.arguments.initial_arrays[number])
            now = arrays.as_numpy(self.arguments.array(number))
            other = arrays.relative_difference(now[changed], old[changed])
            difference = max(difference, other)
        return difference > REPEAT_TOLERANCE


class FunctionLaunch(ResettingLaunch):
    """A Python function whose knobs are set to a configuration."""

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
