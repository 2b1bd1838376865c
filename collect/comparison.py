"""An interleaved comparison in one process: new launches, and new inputs for every timed call.

Each contender runs on earlier inputs, untimed, then on new ones, timed. So a launch that keeps an
earlier result, or writes nothing, gives a wrong output, and all contenders find caches and threads
in the same state. No other contender gets the inputs of a timed call before it. So a result that
another contender has computed, in this process or in a file, is of no use.

A round is a burst of several calls of each contender, see `foretune.collect.burst`. Where a
contender changes the state of the process, a burst counts for nothing: from then on, the state is
put back after every single call.
"""

import math
import secrets
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np

from foretune.collect.burst import (
    BURST_MS,
    BurstCall,
    InputTargets,
    calls_per_burst,
    plan_burst,
    time_loaded_ms,
)
from foretune.collect.call_times import CallTimes, RecordingTimer
from foretune.collect.round_inputs import RoundInputs
from foretune.collect.state_guard import ProcessState
from foretune.collect.timing import Timer, sample_ms
from foretune.collect.worker_environment import is_worker
from foretune.collect.wrapped.call_arguments import CallResult
from foretune.collect.wrapped.values import (
    assign_all,
    bytes_of,
    copy_arrays,
    says_something,
)
from foretune.errors import ForetuneError, MeasurementError, describe_error, first_line
from foretune.kernel import Inputs, Kernel, Launch, SelfTimedLaunch, SpecialInputs, WrongResult
from foretune.problem import Problem
from foretune.space import Configuration

DEFAULT_REPEATED = "again"
"""Key of a second launch of the first configuration, built separately; it shows the noise."""
MIN_ROUNDS = 5
MAX_ROUNDS = 60
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

    Attributes:
        time_ms: by configuration id, `DEFAULT_REPEATED` and ``library:NAME``; one value per timed
            call, as many for each.
        failures: the reason if a contender has no times.
        checked_on: on which inputs the outputs were compared: the kind of the rounds' values, then
            special values.
        separate_ms: times of a few rounds in which each contender had a process of its own.
        cores: how many CPU seconds a contender takes in a second; the median, NaN if unknown.
        other_threads: the share of them in other threads than the calling one; likewise.
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
    """A launch, and its maximum accepted error; None if it is not checked.

    ``call_ms`` is the time of the last call; NaN before the first.
    """

    launch: Launch
    error_limit: float | None
    call_ms: float = math.nan

    @property
    def slow(self) -> bool:
        """Whether its calls are so slow that other processes interrupt them."""
        return self.call_ms > SLOW_MS


@dataclass(frozen=True)
class _CheckedCall:
    """Inputs and output of a timed call, which is checked after the round."""

    inputs: Inputs
    output: Any


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
        self._timer = RecordingTimer(timer)
        self._wait = timer.wait
        self._rng = np.random.default_rng(seed)
        draw = partial(kernel.make_inputs, problem)
        # What an earlier run of this program has kept in a file must not be valid again.
        entropy = secrets.randbits(64) if is_worker() else 0
        draw_rng = np.random.default_rng([seed, entropy])
        self._inputs = RoundInputs(draw, kernel.constant_inputs, draw_rng)
        self._process = ProcessState()
        self._contenders: dict[str, _Contender] = {}
        self._keeps_state = True
        """Whether no contender has changed the state of the process."""
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
        times = CallTimes()
        self._last = {}
        self._inputs.advance()
        self._attempt(key, partial(self._time, key, times, self._last))
        if key not in self._contenders:
            return math.nan, math.nan, False
        return times.wall_ms[key][0], times.cpu_ms[key][0], self._contenders[key].slow

    def check_last(self) -> None:
        """Check the output of the last call of `time_once`."""
        self._check_calls(self._last)

    def run(self, max_seconds: float) -> dict[str, np.ndarray]:
        """Return the contenders' times in ms, in rounds of random order.

        They are CPU times if all contenders are slow and run in one thread, because other processes
        interrupt slow launches. A call that waited is then NaN.
        """
        self.check_special_inputs(max_seconds)
        # The first round shows whether there can be bursts, and of how many calls. What a build
        # changed, such as an import, does not count.
        self._keeps_state = True
        outputs: dict[str, _CheckedCall] = {}
        first_times = self._single_calls(outputs)
        self._check_calls(outputs)
        targets = self._input_targets()
        times = CallTimes() if targets else first_times

        start = time.perf_counter()
        checking_s = 0.0
        for number in range(MAX_ROUNDS):
            elapsed_s = time.perf_counter() - start
            enough = number >= MIN_ROUNDS or elapsed_s > MAX_ROUNDS_S
            if enough and elapsed_s > max_seconds:
                break
            # Checks take a quarter of the time; a launch cannot know which outputs are checked.
            checked: dict[str, _CheckedCall] | None = {} if checking_s <= elapsed_s / 4 else None
            n_calls = self._calls_per_burst(max_seconds)
            if targets and n_calls and self._keeps_state:
                times.extend(self._burst(n_calls, targets, checked))
            else:
                times.extend(self._single_calls(checked))
            check_start = time.perf_counter()
            if checked:
                self._check_calls(checked)
            checking_s += time.perf_counter() - check_start
        all_slow = all(contender.slow for contender in self._contenders.values())
        use_cpu_times = all_slow and all(map(times.are_on_cpu, self._contenders))
        of_calls = times.cpu_ms if use_cpu_times else times.wall_ms
        return {key: np.array(of_calls.get(key, [])) for key in self._contenders}

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

    def _attempt(self, key: str, step: Callable[[], object]) -> None:
        """Take a step of a contender; drop the contender if it fails. Put the state back."""
        try:
            self._attempt_in_burst(key, step)
        finally:
            if self._process.restore():
                self._keeps_state = False

    def _attempt_in_burst(self, key: str, step: Callable[[], object]) -> None:
        """Take a step of a contender; drop the contender if it fails."""
        try:
            step()
        except ForetuneError:
            raise
        except Exception as e:
            self._wait()  # raises if the device's context is broken
            self.failures[key] = e
            self._contenders.pop(key, None)

    def _build(self, key: str, config: Configuration, expected: Any) -> None:
        kernel = self._kernel
        launch = kernel.build(self._problem, config, self._inputs.present)
        contender = _Contender(launch, kernel.error_limit(self._problem, config))
        kernel.invalidate_output(launch())
        self._contenders[key] = contender
        self._check(key, launch(), expected)

    def _input_targets(self) -> dict[str, InputTargets] | None:
        """Return where each contender reads its inputs; None if one needs more than arrays."""
        targets = {}
        for key, contender in self._contenders.items():
            found = InputTargets.of_launch(
                contender.launch, self._inputs.present, self._timer.wrapped
            )
            if found is None:
                return None
            targets[key] = found
        return targets

    def _calls_per_burst(self, max_seconds: float) -> int:
        # Each call takes the time of its draw, too.
        draw_ms = self._inputs.draw_ms
        call_ms = [contender.call_ms + draw_ms for contender in self._contenders.values()]
        burst_ms = min(BURST_MS, 1e3 * max_seconds / MIN_ROUNDS)
        return calls_per_burst(call_ms, burst_ms, bytes_of(self._inputs.new))

    def _burst(
        self,
        n_calls: int,
        targets: Mapping[str, InputTargets],
        checked: dict[str, _CheckedCall] | None,
    ) -> CallTimes:
        """Time ``n_calls`` of each contender; return no times if one fails or changes a state."""
        contenders_before = dict(self._contenders)
        failures_before = dict(self.failures)
        earlier = self._inputs.new
        drawn = {key: [self._inputs.next() for _ in range(n_calls)] for key in self._contenders}
        calls = plan_burst(drawn, self._rng)
        self._warm_up(earlier)
        times = CallTimes()
        for call in calls:
            if call.key in self._contenders:
                step = partial(self._time_burst_call, call, targets[call.key], times, checked)
                self._attempt_in_burst(call.key, step)

        # Others may have failed, or been slow, because of the changed state: nothing counts.
        if self._process.restore():
            self._keeps_state = False
            self._contenders = contenders_before
            self.failures = failures_before
            if checked:
                checked.clear()
            return CallTimes()
        return times if len(self.failures) == len(failures_before) else CallTimes()

    def _warm_up(self, earlier: Inputs) -> None:
        """Run every launch that is not slow on inputs of an earlier call."""
        for key in self._shuffled(self._contenders):
            contender = self._contenders[key]
            if not contender.slow:
                assign_all(self._inputs.present, earlier)
                self._attempt_in_burst(key, contender.launch)

    def _time_burst_call(
        self,
        call: BurstCall,
        targets: InputTargets,
        times: CallTimes,
        checked: dict[str, _CheckedCall] | None,
    ) -> None:
        contender = self._contenders[call.key]
        is_recorded = call.is_noted or contender.slow
        targets.load(call.leaves)
        self._timer.forget()
        timer = self._timer if is_recorded else self._timer.wrapped
        contender.call_ms = time_loaded_ms(contender.launch, timer)
        times.append(call.key, contender.call_ms, self._timer.cpu_ms)
        if is_recorded:
            self._note_use(call.key)
        if call.is_noted and checked is not None and contender.error_limit is not None:
            if isinstance(contender.launch, SelfTimedLaunch):
                # It read a copy. What it wrote there is found by the difference from these.
                assign_all(self._inputs.present, call.inputs)
            checked[call.key] = self._checked_call(contender.launch, call.inputs)

    def _single_calls(self, checked: dict[str, _CheckedCall] | None) -> CallTimes:
        """Time one call of each contender; the state of the process is put back after each."""
        times = CallTimes()
        for key in self._shuffled(self._contenders):
            self._inputs.advance()
            self._attempt(key, partial(self._time, key, times, checked))
        return times

    def _time(self, key: str, times: CallTimes, checked: dict[str, _CheckedCall] | None) -> None:
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
        contender.call_ms = sample_ms(launch, 1, self._timer)
        times.append(key, contender.call_ms, self._timer.cpu_ms)
        self._note_use(key)
        if checked is not None and contender.error_limit is not None:
            checked[key] = self._checked_call(launch, inputs.new)

    def _note_use(self, key: str) -> None:
        self._cores.setdefault(key, []).append(self._timer.cores)
        self._other_threads.setdefault(key, []).append(self._timer.other_threads)

    def _checked_call(self, launch: Launch, inputs: Inputs) -> _CheckedCall:
        """Return a copy of the last call's output, because the next one may write to its memory."""
        copy = launch.output if isinstance(launch, SelfTimedLaunch) else copy_arrays
        return _CheckedCall(inputs, copy(self._timer.returned))

    def _check(self, key: str, output: Any, expected: Any) -> None:
        limit = self._contenders[key].error_limit
        error = self._kernel.relative_error(output, expected)
        if limit is not None and not error <= limit:
            raise WrongResult(f"relative error {error:.2g} is above {limit:.2g} on new inputs")
