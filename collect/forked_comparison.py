"""An interleaved comparison with a process for each contender.

Contenders of one process share its memory: a cache that one fills serves another, a flag that one
sets slows another down, and a thread that one starts runs during the calls of others. So each gets
a process of its own, forked from one that has loaded the kernel and run none of its code. They take
turns, in the rounds of `foretune.collect.comparison`. Whoever does not have its turn is stopped
with all its threads.

Processes differ by more than calls in one process: by 0.8 % instead of 0.15 % for launches of
20 µs, measured with benchmarks/verification.py. So a few rounds like these only confirm the times
of `foretune.collect.comparison`: a gain that needs the default in the same process is none.

Answers of the processes are data, see `foretune.collect.answers`.
"""

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from foretune.collect import answers, state_guard
from foretune.collect.comparison import (
    DEFAULT_REPEATED,
    MAX_ROUNDS,
    InterleavedComparison,
    Rounds,
)
from foretune.collect.message_channel import Channel
from foretune.collect.timing import CPU_TIMER, Timer
from foretune.collect.worker_environment import is_worker
from foretune.collect.wrapped.function import FunctionKernel
from foretune.errors import ForetuneError, describe_error, first_line
from foretune.kernel import Kernel, WrongResult
from foretune.problem import Problem
from foretune.space import Configuration

MIN_SEPARATE_ROUNDS = 2
"""Rounds at least; several processes are compared."""
MAX_ENDING_S = 1.0
"""Seconds that a process may take to end after it closed its connection."""
ENDING_POLL_S = 0.01
_PR_SET_PDEATHSIG = 1
_MARK_BYTES = 16


def can_fork(kernel: Kernel, timer: Timer) -> bool:
    """Whether contenders of this kernel can have processes of their own.

    Foretune's own kernels keep nothing, and a device's context does not survive a fork.
    """
    on_linux = sys.platform == "linux" and hasattr(os, "fork")
    return on_linux and is_worker() and timer is CPU_TIMER and isinstance(kernel, FunctionKernel)


def compare_in_processes(
    kernel: Kernel,
    problem: Problem,
    configs: Iterable[Configuration],
    max_seconds: float,
    seed: int,
) -> Rounds:
    """Return times in interleaved rounds; see `foretune.collect.runner.Runner`."""
    default, *candidates = configs
    built = {config.id: config for config in (default, *candidates)}
    built[DEFAULT_REPEATED] = default
    rng = np.random.default_rng(seed)
    contenders: dict[str, _Contender] = {}
    try:
        for key in _shuffled(built, rng):
            seed_of_contender = int(rng.integers(1, 2**31))
            contenders[key] = _Contender(
                key, kernel, problem, built[key], seed_of_contender, [*contenders.values()]
            )
        return _Turns(contenders, rng).run(max_seconds)
    finally:
        for contender in contenders.values():
            contender.end()


def _shuffled(keys: Iterable[str], rng: np.random.Generator) -> list[str]:
    listed = list(keys)
    return [listed[number] for number in rng.permutation(len(listed))]


@dataclass(frozen=True)
class _Series:
    """Times of a contender, by the wall clock and by its CPU, and whether it is slow."""

    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    slow: list[bool] = field(default_factory=list)


class _Turns:
    """Lets contenders take turns."""

    def __init__(self, contenders: Mapping[str, "_Contender"], rng: np.random.Generator) -> None:
        self._contenders = dict(contenders)
        self._rng = rng
        self._failures: dict[str, str] = {}

    def run(self, max_seconds: float) -> Rounds:
        """Build all contenders, and time them in rounds, whose outputs are all checked."""
        for key in _shuffled(self._contenders, self._rng):
            self._ask(key, "build")
        series = {key: _Series() for key in self._contenders}
        start = time.perf_counter()
        for number in range(MAX_ROUNDS):
            elapsed_s = time.perf_counter() - start
            if number >= MIN_SEPARATE_ROUNDS and elapsed_s > max_seconds:
                break
            for key in _shuffled(self._contenders, self._rng):
                timed = self._ask(key, "time")
                if timed:
                    series[key].wall_ms.append(float(timed[0]))
                    series[key].cpu_ms.append(float(timed[1]))
                    series[key].slow.append(bool(timed[2]))
            for key in _shuffled(self._contenders, self._rng):
                self._ask(key, "check")
        return self._rounds({key: series[key] for key in self._contenders})

    def _ask(self, key: str, command: str) -> Any:
        """Return a contender's answer; drop it if it fails."""
        reason, answer = self._contenders[key].ask(command)
        if not reason:
            return answer
        self._failures[key] = reason
        self._contenders.pop(key).end()
        return None

    def _rounds(self, series: Mapping[str, _Series]) -> Rounds:
        """Use CPU times if all contenders are slow and run in one thread."""
        slow = all(
            kept.slow and kept.slow[-1] and np.isfinite(kept.cpu_ms).mean() > 0.5
            for kept in series.values()
        )
        times = {
            key: np.array(kept.cpu_ms if slow else kept.wall_ms) for key, kept in series.items()
        }
        return Rounds(times, self._failures)


class _Contender:
    """A process that runs one configuration, and is stopped unless it is asked."""

    def __init__(
        self,
        key: str,
        kernel: Kernel,
        problem: Problem,
        config: Configuration,
        seed: int,
        others: "Sequence[_Contender]",
    ) -> None:
        mark = os.urandom(_MARK_BYTES)
        here, there = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            here.close()
            for other in others:  # it must not answer for them
                other.disconnect()
            _serve(Channel(there, mark, dumps=answers.encode), key, kernel, problem, config, seed)
        there.close()
        self._channel = Channel(here, mark, loads=answers.decode)
        self._number = 0
        self._has_ended = False
        # It is stopped only when it will end with this process, or it could stay for ever.
        with suppress(EOFError, OSError, ValueError):
            self._channel.receive()
        self._stop()

    def ask(self, command: str) -> tuple[str, Any]:
        """Return why the contender failed, or "", and its answer; raise its ForetuneError."""
        self._number += 1
        try:
            self._signal(signal.SIGCONT)
            self._channel.send(self._number, command)
            number = 0
            while number != self._number:
                number, content = self._channel.receive()
            self._stop()
            reason, answer = content
        except (EOFError, OSError):
            return f"the process died: {self._cause()}", None
        except ValueError as e:
            return f"its answer cannot be read: {first_line(e)}", None
        if isinstance(reason, ForetuneError):
            raise reason
        return str(reason), answer

    def disconnect(self) -> None:
        """Close this process's end of the connection."""
        self._channel.close()

    def end(self) -> None:
        """Kill the process."""
        self.disconnect()
        if self._has_ended:  # another process may have its number by now
            return
        self._signal(signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._has_ended = True

    def _stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _cause(self) -> str:
        """Return in words why the process does not answer."""
        end = time.monotonic() + MAX_ENDING_S
        while time.monotonic() < end:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                break
            if pid:
                self._has_ended = True
                if os.WIFSIGNALED(status):
                    return signal.Signals(os.WTERMSIG(status)).name
                return f"exit code {os.waitstatus_to_exitcode(status)}"
            time.sleep(ENDING_POLL_S)
        return "it closed its connection"


def _serve(
    channel: Channel,
    key: str,
    kernel: Kernel,
    problem: Problem,
    config: Configuration,
    seed: int,
) -> NoReturn:
    """Answer the coordinator until it closes the connection."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        channel.send(0, None)
        contender = _ServedContender(key, kernel, problem, config, seed)
        while True:
            number, command = channel.receive()
            channel.send(number, contender.answer(command))
    except (EOFError, OSError):  # the comparison is over
        code = 0
    finally:
        os._exit(code)


class _ServedContender:
    """Runs the commands in a contender's process."""

    def __init__(
        self, key: str, kernel: Kernel, problem: Problem, config: Configuration, seed: int
    ) -> None:
        self._key = key
        self._arguments = (kernel, problem, {key: config}, CPU_TIMER, seed)
        self._guard = state_guard.FunctionGuard()
        self._checkers_before = state_guard.checker_ids(kernel)
        self._comparison: InterleavedComparison

    def answer(self, command: str) -> tuple[Any, Any]:
        """Return why the contender failed, or "", and the result of a command."""
        try:
            result = getattr(self, command)()
        except ForetuneError as e:
            return e, None
        except Exception as e:
            return describe_error(e), None
        replaced = self._guard.restore()
        if state_guard.checker_ids(self._arguments[0]) != self._checkers_before:
            replaced.append("its own check")
        if replaced:
            return f"it replaces {', '.join(replaced[:3])}", None
        failure = self._comparison.failures.get(self._key)
        if failure is None:
            return "", result
        is_wrong = isinstance(failure, WrongResult)
        return first_line(failure) if is_wrong else describe_error(failure), None

    def build(self) -> None:
        """Draw inputs, build and check."""
        self._comparison = InterleavedComparison(*self._arguments)

    def time(self) -> tuple[float, float, bool]:
        """Time one call."""
        return self._comparison.time_once(self._key)

    def check(self) -> None:
        """Check the output of the last call."""
        self._comparison.check_last()
