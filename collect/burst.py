"""A burst: timed calls of all contenders in random order, with nothing else between them.

After a millisecond of other work, a short call takes half as long again, and varies by as much:
caches are cold, and threads sleep. So the inputs of all calls are drawn before a burst. Between two
calls, only the next call's values are copied to where the launch reads them. What slows the machine
down for some milliseconds then slows all contenders down alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.collect.timing import CPU_TIMER, Timer, possible_ms, sample_ms
from foretune.collect.wrapped.call_arguments import Arguments, ResettingLaunch
from foretune.collect.wrapped.values import assign, is_array, leaves
from foretune.kernel import Inputs, Launch, SelfTimedLaunch

MAX_CALLS = 16
"""Most calls of each contender in a burst."""
BURST_MS = 100.0
"""At most about the milliseconds of all calls in a burst."""
MAX_DRAWN_BYTES = 1 << 27
"""Most bytes of the inputs that are drawn before a burst (128 MiB)."""


@dataclass(frozen=True)
class InputTargets:
    """Where a launch reads its inputs: arrays, and the number of each among the inputs' arrays."""

    arrays: Sequence[Any]
    numbers: Sequence[int]

    @classmethod
    def of_launch(cls, launch: Launch, present: Inputs, timer: Timer) -> "InputTargets | None":
        """Return the targets of a launch that was built on the inputs ``present``.

        None if more than arrays has to be replaced between two calls, or calls are not timed by the
        host's clock.
        """
        if timer is not CPU_TIMER:
            return None
        number_of = {id(leaf): number for number, leaf in enumerate(leaves(present))}
        if not isinstance(launch, SelfTimedLaunch):  # it reads the inputs themselves
            arrays = [leaf for leaf in leaves(present) if is_array(leaf)]
            return cls(arrays, [number_of[id(array)] for array in arrays])

        if not isinstance(launch, ResettingLaunch):
            return None
        arguments = launch.arguments
        if type(arguments) is not Arguments or arguments.has_generators:
            return None
        if not all(id(array) in number_of for array in arguments.initial_arrays):
            return None
        return cls(arguments.arrays, [number_of[id(array)] for array in arguments.initial_arrays])

    def load(self, leaves_of_inputs: Sequence[Any]) -> None:
        """Copy the values of a call's inputs, which are given as leaves."""
        for array, number in zip(self.arrays, self.numbers, strict=True):
            if array is not leaves_of_inputs[number]:
                assign(array, leaves_of_inputs[number])


@dataclass(frozen=True)
class BurstCall:
    """A timed call of a contender: its inputs, and their leaves.

    ``is_noted``: what it returns is kept, and may be checked.
    """

    key: str
    inputs: Inputs
    leaves: Sequence[Any]
    is_noted: bool


def plan_burst(drawn: Mapping[str, Sequence[Inputs]], rng: np.random.Generator) -> list[BurstCall]:
    """Return the calls of a burst, in random order within each turn of all contenders.

    ``drawn`` are each contender's inputs; all have as many. One random call of each is noted, so
    that no contender knows which output is checked.
    """
    keys = list(drawn)
    n_calls = len(drawn[keys[0]])
    noted = dict(zip(keys, rng.integers(n_calls, size=len(keys)).tolist(), strict=True))
    calls = []
    for turn in range(n_calls):
        for number in rng.permutation(len(keys)).tolist():
            key = keys[number]
            inputs = drawn[key][turn]
            calls.append(BurstCall(key, inputs, list(leaves(inputs)), turn == noted[key]))
    return calls


def calls_per_burst(call_ms: Sequence[float], burst_ms: float, input_bytes: int) -> int:
    """Return how many calls each contender has in a burst; 0 if its inputs are too large.

    Args:
        call_ms: the contenders' times, with the draw of their inputs.
        burst_ms: about the time of all calls.
        input_bytes: size of the inputs of one call.
    """
    by_memory = MAX_DRAWN_BYTES // max(1, len(call_ms) * input_bytes)
    by_time = max(1, int(burst_ms / sum(call_ms))) if call_ms else 0
    return min(MAX_CALLS, by_time, by_memory)


def time_loaded_ms(launch: Launch, timer: Timer) -> float:
    """Return the milliseconds of one call, whose inputs have been loaded."""
    if isinstance(launch, ResettingLaunch):
        return possible_ms(lambda: launch.time_ms(timer, 1))
    return sample_ms(launch, 1, timer)
