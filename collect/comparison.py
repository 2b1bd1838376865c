"""An interleaved comparison in one process: new launches, and new inputs for every timed call.

Each contender runs on earlier inputs, untimed, then on new ones, timed. So a launch that keeps an
earlier result, or writes nothing, gives a wrong output, and all contenders find caches and threads
in the same state. No other contender gets the inputs of a timed call, before or after it. So a
result that another contender has computed, in this process or in a file, is of no use.
"""

import math
import secrets
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np

from foretune.collect.state_guard import ProcessState
from foretune.collect.timing import CPU_TIMER, Timer, sample_ms
from foretune.collect.worker_environment import is_worker
from foretune.collect.wrapped.call_arguments import CallResult
from foretune.collect.wrapped.values import assign_all, copy_arrays, says_something
from foretune.errors import ForetuneError, MeasurementError, describe_error, first_line
from foretune.kernel import Inputs, Kernel, Launch, SelfTimedLaunch, SpecialInputs, WrongResult
from foretune.problem import Problem
from foretune.space import Configuration

DEFAULT_REPEATED = "again"
"""Key of a second launch of the first configuration, built separately; it shows the noise."""
MIN_ROUNDS = 5
MAX_ROUNDS = 60
ONE_THREAD = 1.02
"""Largest ratio of the process's CPU time to the calling thread's in a launch of one thread."""
MAX_ROUNDS_S = 5.0  # seconds after which a comparison ends with fewer than `MIN_ROUNDS`
SPECIAL_SHARE = 0.5
"""Largest CPU time for special inputs, relative to that of the rounds; one kind is always
checked."""
MIN_SPECIAL_S = 0.5
"""CPU seconds for special inputs at least: enough for all kinds if a launch is short. Other load
takes away time, but no checks."""
SLOW_MS = 1.0  # slower launches run without an untimed one before: it would change little


@dataclass(frozen=True)
class Rounds:
    """Times of an interleaved comparison in one process.

    ``time_ms`` is by configuration id, `DEFAULT_REPEATED` and ``library:NAME``, with one value per
    round; ``failures`` gives the reason if a contender has no times. ``checked_on`` says on which
    inputs the outputs were compared: the kind of the rounds' values, then special values.
    ``separate_ms`` are times of a few rounds in which each contender had a process of its own.
    ``cores`` is how many CPU seconds a contender takes in a second, and ``other_threads`` the share
    of them in other threads than the calling one; both are medians, and NaN if unknown.
    """

    time_ms: Mapping[str, np.ndarray]
    failures: Mapping[str, str] = field(default_factory=dict)
    checked_on: tuple[str, ...] = ()
    separate_ms: Mapping[str, np.ndarray] = field(default_factory=dict)
    cores: Mapping[str, float] = field(default_factory=dict)
    other_threads: Mapping[str, float] = field(default_factory=dict)


def expected_result(kernel: Kernel, inputs: Inputs) -> Any:
    """Return the correct output; raise MeasurementError if it is empty or all NaN."""
    expected = kernel.reference(inputs)
    # A function that writes into its arguments may change nothing for some values.
    changes_nothing = isinstance(expected, CallResult) and expected.returned is None
    if changes_nothing and not expected.written:
        return expected
    if expected is not None and not says_something(parts_of(expected)):
        raise MeasurementError(
            f"the expected result of {kernel.name} is empty or all NaN, so nothing can be "
            "compared with it: give other inputs, or a reference"
        )
    return expected


def parts_of(result: Any) -> Any:
    """Return the arrays of a result, nested in tuples, lists and dicts."""
    return (result.returned, result.written) if isinstance(result, CallResult) else result


@dataclass
class _Contender:
    """A launch, and its maximum accepted error; None if it is not checked."""

    launch: Launch
    error_limit: float | None
    slow: bool = False


@dataclass(frozen=True)
class _CheckedCall:
    """Inputs and output of a timed call, which is checked after the round."""

    inputs: Inputs
    output: Any


class _RecordingTimer(Timer):
    """A timer that keeps what the last timed call ``returned``, and its CPU time.

    ``cpu_ms`` is NaN unless the host's clock timed the call, which ran in this thread only and
    waited for nothing. Its time is then what it would take if no other process were given the CPU.
    ``cores`` and ``other_threads`` are those of `Rounds`.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self.forget()

    def forget(self) -> None:
        """Forget the last call: launches with clocks of their own do not use this one."""
        self.returned: Any = None
        self.cpu_ms = math.nan
        self.cores = math.nan
        self.other_threads = math.nan

    def sample_ms(self, launch: Launch, batch_size: int) -> float:
        def recorded() -> None:
            self.returned = launch()

        recorded.__wrapped__ = launch  # type: ignore[attr-defined]
        if self._timer is not CPU_TIMER:  # a device works while the host waits
            return self._timer.sample_ms(recorded, batch_size)
        waits = _waits()
        total = time.process_time_ns()
        start = time.thread_time_ns()
        sample_ms = self._timer.sample_ms(recorded, batch_size)
        thread_ns = time.thread_time_ns() - start
        total_ns = time.process_time_ns() - total
        alone = total_ns <= ONE_THREAD * thread_ns and _waits() == waits
        self.cpu_ms = thread_ns * 1e-6 / batch_size if alone else math.nan
        self.cores = total_ns * 1e-6 / (sample_ms * batch_size)
        self.other_threads = max(0.0, 1.0 - thread_ns / max(total_ns, 1))
        return sample_ms


def _waits() -> float:
    """Return how often this thread waited for anything other than the CPU; NaN if unknown."""
    try:
        from resource import RUSAGE_THREAD, getrusage
    except ImportError:  # not Linux
        return math.nan
    return getrusage(RUSAGE_THREAD).ru_nvcsw


class RoundInputs:
    """Inputs whose values are replaced in place, at the addresses that launches read.

    ``present`` are the arrays that launches read, ``new`` the values of the next timed call,
    ``old`` those of the one before. ``draw`` returns the inputs of a seed. Inputs in ``constant``,
    and those whose shapes depend on the seed, keep their first values.
    """

    def __init__(
        self, draw: Callable[[int], Inputs], constant: Sequence[str], rng: np.random.Generator
    ) -> None:
        self._draw_seed = draw
        self._rng = rng
        self.present: Inputs = self._draw()  # where the kernel puts them, which may be aligned
        self._constant = {name: self.present[name] for name in constant if name in self.present}
        self.old = self.new = copy_arrays(self.present) | self._constant

    def advance(self) -> None:
        """Draw the values of the next timed call."""
        drawn = self._draw() | self._constant
        if assign_all(self.present, drawn):
            self.old = self.new
            self.new = drawn

    def _draw(self) -> Inputs:
        return self._draw_seed(int(self._rng.integers(1, 2**31)))


class InterleavedComparison:
    """Launches of configurations, the default first.

    ``built`` are the configurations by key. ``failures`` has the errors of those that were dropped.
    Raises ForetuneError if the kernel cannot be measured here at all.
    """

    @classmethod
    def of_configs(
        cls,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        timer: Timer,
        seed: int,
    ) -> Self:
        """Return a comparison of configurations, the default twice, and a library's call."""
        default, *candidates = configs
        built = {c.id: c for c in (default, *candidates)} | {DEFAULT_REPEATED: default}
        comparison = cls(kernel, problem, built, timer, seed)
        comparison.add_library()
        return comparison

    def __init__(
        self,
        kernel: Kernel,
        problem: Problem,
        built: Mapping[str, Configuration],
        timer: Timer,
        seed: int,
    ) -> None:
        self._kernel = kernel
        self._problem = problem
        self._timer = _RecordingTimer(timer)
        self._wait = timer.wait
        self._rng = np.random.default_rng(seed)
        draw = partial(kernel.make_inputs, problem)
        # What an earlier run of this program has kept in a file must not be valid again.
        entropy = secrets.randbits(64) if is_worker() else 0
        draw_rng = np.random.default_rng([seed, entropy])
        self._inputs = RoundInputs(draw, kernel.constant_inputs, draw_rng)
        self._process = ProcessState()
        self._contenders: dict[str, _Contender] = {}
        self.failures: dict[str, Exception] = {}
        self.checked_on: list[str] = []
        self._last: dict[str, _CheckedCall] = {}
        self._cores: dict[str, list[float]] = {}
        self._other_threads: dict[str, list[float]] = {}
        expected = expected_result(kernel, self._inputs.new)
        for key in self._shuffled(built):  # each process allocates in another order
            self._attempt(key, partial(self._build, key, built[key], expected))

    def add_library(self) -> None:
        """Add the library's call, if there is one."""
        if found := self._kernel.library(self._problem, self._inputs.present):
            self._contenders[f"library:{found[0]}"] = _Contender(found[1], None)

    def time_once(self, key: str) -> tuple[float, float, bool]:
        """Time one call; return its wall and CPU time in ms, and whether it is slow."""
        wall_ms: list[float] = []
        cpu_ms: list[float] = []
        self._last = {}
        self._inputs.advance()
        self._attempt(key, partial(self._time, key, wall_ms, cpu_ms, self._last))
        if key not in self._contenders:
            return math.nan, math.nan, False
        return wall_ms[0], cpu_ms[0], self._contenders[key].slow

    def check_last(self) -> None:
        """Check the output of the last call of `time_once`."""
        self._check_calls(self._last)

    def run(self, max_seconds: float) -> dict[str, np.ndarray]:
        """Return the contenders' times in ms, in rounds of random order.

        They are CPU times if all contenders are slow and run in one thread, because other processes
        interrupt slow launches. A round in which a contender waited is then NaN.
        """
        times: dict[str, list[float]] = {key: [] for key in self._contenders}
        cpu_times: dict[str, list[float]] = {key: [] for key in self._contenders}
        self.check_special_inputs(max_seconds)
        start = time.perf_counter()
        checking_s = 0.0
        for number in range(MAX_ROUNDS):
            elapsed_s = time.perf_counter() - start
            enough = number >= MIN_ROUNDS or elapsed_s > MAX_ROUNDS_S
            if enough and elapsed_s > max_seconds:
                break
            # Checks take a quarter of the time; a launch cannot know which outputs are checked.
            outputs: dict[str, _CheckedCall] | None = {} if checking_s <= elapsed_s / 4 else None
            for key in self._shuffled(self._contenders):
                self._inputs.advance()
                step = partial(self._time, key, times[key], cpu_times[key], outputs)
                self._attempt(key, step)
            check_start = time.perf_counter()
            if outputs:
                self._check_calls(outputs)
            checking_s += time.perf_counter() - check_start
        kept = self._contenders
        slow = all(c.slow and np.isfinite(cpu_times[key]).mean() > 0.5 for key, c in kept.items())
        return {key: np.array((cpu_times if slow else times)[key]) for key in kept}

    def cores(self) -> dict[str, float]:
        """Return each contender's CPU seconds per second, see `Rounds`."""
        return {key: float(np.median(values)) for key, values in self._cores.items()}

    def other_threads(self) -> dict[str, float]:
        """Return each contender's share of CPU seconds in other threads, see `Rounds`."""
        return {key: float(np.median(values)) for key, values in self._other_threads.items()}

    def _check_calls(self, calls: "Mapping[str, _CheckedCall]") -> None:
        """Check the outputs of a round, each with the inputs of its call."""
        for key, call in calls.items():
            expected = expected_result(self._kernel, call.inputs)
            self._attempt(key, partial(self._check, key, call.output, expected))

    def check_special_inputs(self, max_seconds: float) -> None:
        """Run all contenders, untimed, on inputs with zeros, large values, NaN and others."""
        self.checked_on.append(self._kernel.describe_values(self._problem))
        end = time.process_time() + max(max_seconds * SPECIAL_SHARE, MIN_SPECIAL_S)
        for special in self._kernel.special_inputs(self._problem, self._rng):
            inputs = copy_arrays(special.inputs)
            if assign_all(self._inputs.present, inputs):
                self.checked_on.append(special.name)
                for key in self._shuffled(self._contenders):
                    step = partial(self._check_special, key, inputs, special)
                    self._attempt(key, step)
            if time.process_time() > end:
                break

    def _check_special(self, key: str, inputs: Inputs, special: SpecialInputs) -> None:
        contender = self._contenders[key]
        if contender.error_limit is None:
            return
        assign_all(self._inputs.present, inputs)
        launch = contender.launch
        if isinstance(launch, SelfTimedLaunch):
            launch.reset()
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                output = launch()
            self._check(key, output, special.expected)
        except Exception as e:
            reason = first_line(e) if isinstance(e, WrongResult) else describe_error(e)
            raise WrongResult(f"on inputs with {special.name}: {reason}") from e

    def _shuffled(self, keys: Iterable[str]) -> list[str]:
        listed = list(keys)
        return [listed[i] for i in self._rng.permutation(len(listed))]

    def _attempt(self, key: str, step: Callable[[], None]) -> None:
        """Take a step of a contender; drop the contender if it fails."""
        try:
            step()
        except ForetuneError:
            raise
        except Exception as e:
            self._wait()  # raises if the device's context is broken
            self.failures[key] = e
            self._contenders.pop(key, None)
        finally:
            self._process.restore()

    def _build(self, key: str, config: Configuration, expected: Any) -> None:
        kernel = self._kernel
        launch = kernel.build(self._problem, config, self._inputs.present)
        contender = _Contender(launch, kernel.error_limit(self._problem, config))
        kernel.invalidate_output(launch())
        self._contenders[key] = contender
        self._check(key, launch(), expected)

    def _time(
        self,
        key: str,
        times: list[float],
        cpu_times: list[float],
        outputs: "dict[str, _CheckedCall] | None",
    ) -> None:
        contender = self._contenders[key]
        inputs = self._inputs
        launch = contender.launch
        if not contender.slow:
            assign_all(inputs.present, inputs.old)
            launch()
        assign_all(inputs.present, inputs.new)
        if isinstance(launch, SelfTimedLaunch):
            launch.reset()
        self._timer.forget()
        times.append(sample_ms(launch, 1, self._timer))
        cpu_times.append(self._timer.cpu_ms)
        self._cores.setdefault(key, []).append(self._timer.cores)
        self._other_threads.setdefault(key, []).append(self._timer.other_threads)
        contender.slow = times[-1] > SLOW_MS
        if outputs is not None and contender.error_limit is not None:
            copy = launch.output if isinstance(launch, SelfTimedLaunch) else copy_arrays
            output = copy(self._timer.returned)  # the next launch may write to its memory
            outputs[key] = _CheckedCall(inputs.new, output)

    def _check(self, key: str, output: Any, expected: Any) -> None:
        limit = self._contenders[key].error_limit
        error = self._kernel.relative_error(output, expected)
        if limit is not None and not error <= limit:
            raise WrongResult(f"relative error {error:.2g} is above {limit:.2g} on new inputs")
