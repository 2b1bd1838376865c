"""Checks a winner in a process that runs no code of it: its outputs, and its gain.

The processes of a comparison run the configurations, so one of them could replace the comparison,
the clock or the answers there. Before a winner is named, it runs alone in one process, and the
default alone in another, on the same inputs. Both send their outputs as data; this process compares
them by the usual rules, and times the requests by its own clock.

Processes differ, and a request takes time, so this does not measure the gain: a winner of whose
gain less than half is seen is not confirmed. Drawing inputs and sending all outputs are timed, too:
a result that is computed before or after its call gains nothing. The winner is stopped with all its
threads unless it has its turn.
"""

import math
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from foretune.collect.answers import UnreadableAnswer
from foretune.collect.runner import Runner
from foretune.collect.separate_contender import GIVEN, REDRAWN, InputCase, Ways
from foretune.collect.worker_process import WorkerProcess
from foretune.collect.wrapped.output_data import NotSendable, has_stand_ins, restore_result
from foretune.collect.wrapped.special_values import SPECIAL_VALUES
from foretune.collect.wrapped.wrapped import WrappedKernel
from foretune.errors import ForetuneError, first_line
from foretune.kernel import WrongResult
from foretune.problem import Problem
from foretune.space import Configuration

CHECKED_REDRAWN = 2
"""Redrawn inputs on which outputs are compared before anything is timed."""
SPECIAL_S = 0.5
"""Seconds for special values; at least one kind is checked."""
ROUNDS_S = 0.3
"""Seconds of timed rounds."""
MIN_ROUNDS = 20
"""Rounds of short calls: on a busy machine, some of them are interrupted by nothing."""
MAX_ROUNDS = 30
OUTPUT_CHECK_SHARE = 1 / 3
"""Share of the rounds in which an output is compared; a configuration cannot know which."""
MAX_ROUNDS_S = 2.0
"""Seconds after which slow calls have fewer than `MIN_ROUNDS`."""
BURST_S = 0.004
"""Calls are timed together until the default takes as long: a request then takes a small share."""
BURST_TRIES = 9
"""Bursts that are measured to find their size, each at most twice as long as the one before."""
MIN_CALL_S = 1e-6
MAX_SEND_S = 0.02
"""Seconds that the outputs of these calls may take to be sent."""
MAX_BURST = 64
"""Largest number of calls that are timed together, each with inputs of its own."""
MAX_BURST_BYTES = 1 << 26
"""Largest size of all inputs of the calls that are timed together."""
PROCESS_NOISE = 0.04
"""Share of the default's time by which equal processes may differ; twice the deviation of
`foretune.tune.verifier.SEPARATE_NOISE`."""
REQUEST_NOISE_S = 1e-4
"""Seconds by which two requests may differ."""
SEEN_SHARE = 0.5
"""Least share of a gain, in logarithms, that must be seen here."""
TRIES = 3
"""Pairs of processes before a gain counts as not seen: a process may be slow by chance."""
LIMIT_FACTOR = 10.0
"""Time limit of a request, relative to that of a measurement: it may run the default often."""


@dataclass(frozen=True)
class SeparateVerdict:
    """What a check found.

    Attributes:
        refused: why the winner is refused; empty if it is not.
        unseen: why its gain is not confirmed; empty if it is. Other load may be the reason.
        limitation: why outputs could not be compared here; empty if they were.
    """

    refused: str = ""
    unseen: str = ""
    limitation: str = ""


@dataclass(frozen=True)
class Contest:
    """The two configurations of a check.

    ``gain`` is the ratio of their times that was measured; None if its time is not by the host's
    clock.
    """

    kernel: WrappedKernel
    problem: Problem
    default: Configuration
    candidate: Configuration
    gain: float | None


class _Refused(Exception):
    """The candidate is refused; the message is the reason."""


class _WrongOutput(_Refused):
    """Its output is wrong, if the default's is the same in every process."""


class _NotComparable(Exception):
    """Outputs cannot be compared in this process; the message is the reason."""


def check_separately(runner: Runner, contest: Contest) -> SeparateVerdict:
    """Compare outputs and gain of a candidate, in this process."""
    unseen = ""
    default, candidate = _Times(), _Times()
    calls = 0
    try:
        for number in range(TRIES):
            with _pair(runner, contest) as pair:
                pair.check_outputs()
                if contest.gain is None:
                    break
                calls = calls or pair.calls_per_burst()
                pair.time_rounds(default, candidate, calls)
                # What was not seen once must be seen clearly.
                noise = PROCESS_NOISE if number == 0 else 0.0
                asking_s = pair.asking_s()
                unseen = _missing_gain(default, candidate, contest.gain, asking_s, noise=noise)
            if not unseen:
                break
    except _NotComparable as e:
        return SeparateVerdict(limitation=str(e))
    except _WrongOutput as e:
        # The default must be right by the same test.
        limitation = _control(runner, contest)
        if limitation:
            return SeparateVerdict(limitation=limitation)
        return SeparateVerdict(refused=str(e))
    except _Refused as e:
        return SeparateVerdict(refused=str(e))
    return SeparateVerdict(unseen=unseen)


def _control(runner: Runner, contest: Contest) -> str:
    """Return why the default's outputs differ between two processes; empty if they do not."""
    control = Contest(contest.kernel, contest.problem, contest.default, contest.default, gain=None)
    try:
        with _pair(runner, control) as pair:
            pair.check_outputs()
    except _NotComparable as e:
        return str(e)
    except _Refused as e:
        return f"the default's output differs between two processes ({e})"
    return ""


@contextmanager
def _pair(runner: Runner, contest: Contest) -> Iterator["_Pair"]:
    hash_seed = secrets.randbelow(2**32)
    processes = []
    for config in (contest.default, contest.candidate):
        process = runner.separate_process(contest.kernel, contest.problem, config, hash_seed)
        if process is None:
            raise _NotComparable(runner.why_not_separate)
        processes.append(process)
    limit_s = LIMIT_FACTOR * getattr(runner, "limit_s", 60.0)
    try:
        _start(processes, limit_s)
        default, candidate = processes
        yield _Pair(contest, default, candidate, limit_s=limit_s)
    finally:
        for process in processes:
            process.resume()
            process.close()


def _start(processes: Sequence[WorkerProcess], limit_s: float) -> None:
    """Start processes at the same time; an error is that of the first real request, too."""

    def start(process: WorkerProcess) -> None:
        with suppress(ForetuneError, ChildProcessError, TimeoutError):
            process.call("idle", limit_s=limit_s)

    with ThreadPoolExecutor(len(processes)) as pool:
        list(pool.map(start, processes))


@dataclass
class _Times:
    """Seconds of the steps of each round of one contender, by this process's clock."""

    prepare: list[float] = field(default_factory=list)
    run: list[float] = field(default_factory=list)
    send: list[float] = field(default_factory=list)

    @property
    def fastest(self) -> dict[str, float]:
        """The fastest of each step, added up: other load only adds time."""
        run = min(self.run)
        send = min(self.send)
        return {"run": run, "send": run + send, "prepare": run + send + min(self.prepare)}


class _Pair:
    """The default and a candidate, each in its process. The one that has no turn is stopped."""

    def __init__(
        self, contest: Contest, default: WorkerProcess, candidate: WorkerProcess, limit_s: float
    ) -> None:
        self._contest = contest
        self._default = default
        self._candidate = candidate
        self._limit_s = limit_s
        self._random = random.Random(secrets.randbits(64))
        self._ways: Ways = ()
        self._input_bytes = 0

    def check_outputs(self) -> None:
        """Compare outputs on given, special and redrawn inputs; raise if they differ."""
        self._ways = self._ask_default("ways_to_draw")
        with self._turn(self._candidate):
            self._ask_candidate("draw_in", self._ways)
        self._check_output((GIVEN, 0))
        for _ in range(CHECKED_REDRAWN):
            self._check_output((REDRAWN, self._new_seed()))
        names = [special.name for special in SPECIAL_VALUES]
        end = time.monotonic() + SPECIAL_S
        for name in self._random.sample(names, len(names)):
            seed = self._new_seed()
            if self._ask_default("accepted_special_values", seed, (name,)):
                self._check_output((name, seed))
            if time.monotonic() > end:
                break

    def time_rounds(self, default: _Times, candidate: _Times, calls: int) -> None:
        """Time both in rounds of bursts; compare an output of some rounds, at random."""
        start = time.monotonic()
        for number in range(MAX_ROUNDS):
            elapsed_s = time.monotonic() - start
            if elapsed_s > (ROUNDS_S if number >= MIN_ROUNDS else MAX_ROUNDS_S):
                break

            # The candidate is first: what the default keeps in a file is of no use.
            cases = [(REDRAWN, self._new_seed()) for _ in range(calls)]
            outputs = self._timed(self._candidate, cases, candidate)
            self._timed(self._default, cases, default)
            if number == 0 or self._random.random() < OUTPUT_CHECK_SHARE:
                chosen = self._random.randrange(calls)
                self._compare(outputs[chosen], cases[chosen])

    def calls_per_burst(self) -> int:
        """Return how many calls take the default `BURST_S`."""
        asking_s = self.asking_s()
        call_s = math.inf
        calls = 1
        for _ in range(BURST_TRIES):
            times = _Times()
            cases = [(REDRAWN, self._new_seed()) for _ in range(calls)]
            self._timed(self._default, cases, times)

            # Other load may have slowed this one down.
            call_s = min(call_s, max(times.run[0] - asking_s, MIN_CALL_S) / calls)
            send_s = times.send[0] / calls
            largest = min(MAX_BURST, MAX_BURST_BYTES * calls // max(self._input_bytes, 1))
            wanted = min(BURST_S / call_s, MAX_SEND_S / send_s, 2 * calls)
            calls = max(calls, min(int(wanted), largest))
        return calls

    def asking_s(self) -> float:
        """Return the seconds that a request takes, from the process whose code is trusted."""
        samples = []
        for _ in range(5):
            start = time.perf_counter()
            self._ask_default("idle")
            samples.append(time.perf_counter() - start)
        return min(samples)

    @contextmanager
    def _turn(self, process: WorkerProcess) -> Iterator[None]:
        """Let a contender run alone. The candidate is stopped unless it has its turn."""
        if process is not self._candidate:
            yield
            return
        self._default.pause()
        self._candidate.resume()
        try:
            yield
        finally:
            self._candidate.pause()
            self._default.resume()

    def _timed(
        self, process: WorkerProcess, cases: Sequence[InputCase], times: _Times
    ) -> list[Any]:
        """Run a contender on some inputs while the other one is stopped; return its outputs."""
        is_candidate = process is self._candidate
        ask = self._ask_candidate if is_candidate else self._ask_default
        with self._turn(process):
            start = time.perf_counter()
            self._input_bytes = int(ask("prepare", cases))
            run_start = time.perf_counter()
            failure = ask("run")
            run_end = time.perf_counter()
            outputs = ask("outputs")
            end = time.perf_counter()
        times.prepare.append(run_start - start)
        times.run.append(run_end - run_start)
        times.send.append(end - run_end)
        if failure:
            raise _failed(str(failure), is_candidate)
        if not isinstance(outputs, list) or len(outputs) != len(cases):
            raise _failed("it sent no outputs", is_candidate)
        return outputs

    def _check_output(self, case: InputCase) -> None:
        (output,) = self._timed(self._candidate, [case], _Times())
        self._compare(output, case)

    def _compare(self, output: Any, case: InputCase) -> None:
        """Compare an output with the correct one, in this process."""
        kernel = self._contest.kernel
        expected = self._ask_default("expected", case)
        try:
            right = restore_result(expected)
        except UnreadableAnswer as e:
            raise _NotComparable(f"the default's output cannot be read: {first_line(e)}") from e
        try:
            got = restore_result(output)
        except UnreadableAnswer as e:
            raise _Refused(f"its output cannot be read: {first_line(e)}") from e
        if getattr(kernel, "verify", None) is not None:
            if has_stand_ins(right):
                raise _NotComparable("verify= gets objects that cannot be sent as data")
            if has_stand_ins(got):
                raise _WrongOutput("its output is of another class than the default's")
        try:
            error = kernel.relative_error(got, right)
        except (WrongResult, ForetuneError, AttributeError) as e:
            raise _WrongOutput(f"in a process of its own: {first_line(e)}") from e
        limit = kernel.error_limit(self._contest.problem, self._contest.candidate)
        if not error <= limit:
            raise _WrongOutput(
                f"in a process of its own: relative error {error:.2g} is above {limit:.2g}"
            )

    def _ask_default(self, method: str, *arguments: Any) -> Any:
        try:
            return self._default.call(method, *arguments, limit_s=self._limit_s)
        except TimeoutError as e:
            raise _NotComparable("the default takes too long in a process of its own") from e
        except NotSendable as e:
            raise _NotComparable(str(e)) from e
        except (ChildProcessError, ForetuneError) as e:
            raise _NotComparable(f"the default fails in a process of its own: {e}") from e

    def _ask_candidate(self, method: str, *arguments: Any) -> Any:
        try:
            return self._candidate.call(method, *arguments, limit_s=self._limit_s)
        except TimeoutError as e:
            raise _Refused(f"it did not end within {self._limit_s:g} s, alone") from e
        except NotSendable as e:
            # The default may say the same of its output.
            raise _WrongOutput(str(e)) from e
        except (ChildProcessError, ForetuneError) as e:
            raise _Refused(f"it fails in a process of its own: {e}") from e

    def _new_seed(self) -> int:
        return self._random.randrange(1, 2**31)


def _failed(reason: str, is_candidate: bool) -> Exception:
    if is_candidate:
        return _Refused(f"it fails in a process of its own: {reason}")
    return _NotComparable(f"the default fails in a process of its own: {reason}")


def _missing_gain(
    default: _Times, candidate: _Times, gain: float, asking_s: float, *, noise: float
) -> str:
    """Return in words that less than half of a gain is seen; empty if more is.

    ``noise`` is the share of the default's time by which two equal ones may differ.
    """
    slower, faster = default.fastest, candidate.fastest
    run_s = max(slower["run"] - asking_s, 0.0)
    wanted_s = run_s * (1.0 - gain**-SEEN_SHARE)
    for step, slower_s in slower.items():
        noise_s = noise * slower_s + REQUEST_NOISE_S
        if slower_s - faster[step] + noise_s < wanted_s:
            return (
                f"another process's clock sees {slower_s / faster[step]:.2f}× for bursts of "
                f"calls ({1e3 * faster[step]:.3g} ms, the default {1e3 * slower_s:.3g} ms), "
                f"where its own says {gain:.2f}×"
            )
    return ""
