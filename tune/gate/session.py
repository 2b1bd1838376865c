"""One session: a fresh process of each environment, which take turns with every benchmark.

For each benchmark, in random order, all processes set up the same inputs. Then they time bursts of
calls in rounds, in a new random order each round, so that they share what happens to the machine.
Only one process is timed at a time; they load and set up at the same time.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from foretune.collect.comparison import Rounds
from foretune.collect.power import PowerMeter
from foretune.collect.printed_output import PrintedOutput
from foretune.collect.worker_process import START_TIMEOUT_S
from foretune.errors import MeasurementError
from foretune.tune.gate.agent_process import AgentProcess, RequestFailed
from foretune.tune.gate.environment import BASE, Environment, EnvironmentContents
from foretune.tune.gate.measured_code import CopiedFiles

MAX_HASH_SEED = 2**32 - 1
TURN_MS = 0.25
"""Milliseconds that one process works in a round, if a call is shorter: a burst.

Other load comes and goes within milliseconds. Of many short turns, some meet none.
"""
MAX_BURSTS = 32
"""Largest number of bursts in a turn."""
ROUNDS_MS = 32.0
"""Milliseconds that one process works in all rounds of a session, if their least number allows."""
MIN_ROUNDS = 4
MAX_ROUNDS = 32
"""Bounds of the number of rounds of a benchmark in each session."""
WARM_UP_MS = 5.0
"""Shorter calls run once before the first round of each process, untimed."""
GPU_TURN_MS = 8.0
"""The same of a turn on the GPU; clearing its caches takes longer than most kernels."""
MAX_GPU_CALLS = 32
"""Largest number of calls in a turn on the GPU."""
ENERGY_WINDOW_MS = 300.0
"""Milliseconds of calls while the energy is metered: a counter moves about once in one of them."""
CPU_SHARE = 0.5
"""Share of bursts that must have CPU times, so that these are used."""


@dataclass(frozen=True)
class Suite:
    """What agents load.

    Attributes:
        path: file or folder of the benchmarks in each environment, by role; empty without one.
        commands: command lines to time.
        imports: modules whose import is timed.
        pytest_options: more words for pytest.
        copied: files that all environments have as one commit has them; None if none are.
        helpers: files and folders that belong to the benchmarks, relative to the environments'
            folder.
        measures_memory: whether peaks of memory are wanted; then freed memory is returned to the
            system as usual.
    """

    path: Mapping[str, str]
    commands: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    pytest_options: tuple[str, ...] = ()
    copied: CopiedFiles | None = None
    helpers: tuple[str, ...] = ()
    measures_memory: bool = False

    def request(self, role: str) -> dict[str, Any]:
        """Return the content of the request ``load``."""
        return {
            "path": self.path.get(role, ""),
            "commands": list(self.commands),
            "imports": list(self.imports),
            "pytest": list(self.pytest_options),
            "keep_freed_memory": not self.measures_memory,
        }


@dataclass(frozen=True)
class Loaded:
    """The answer to ``load``: names of benchmarks, what was left out and why, the environment."""

    benchmarks: tuple[str, ...]
    left_out: Mapping[str, str]
    contents: EnvironmentContents


@dataclass(frozen=True)
class TurnPlan:
    """How a benchmark is timed: ``rounds`` turns of ``bursts`` bursts of ``calls`` calls.

    A call takes ``call_ms``.
    """

    calls: int
    bursts: int
    rounds: int
    call_ms: float

    @classmethod
    def of_count(
        cls, calls: int, call_ns: float, *, turn_ms: float = TURN_MS, most_rounds: int = MAX_ROUNDS
    ) -> Self:
        """Return the plan for a number of calls per burst, and nanoseconds per call."""
        call_ms = call_ns * 1e-6
        burst_ms = max(calls * call_ms, 1e-6)
        bursts = min(max(round(turn_ms / burst_ms), 1), MAX_BURSTS)
        rounds = min(max(round(ROUNDS_MS / (bursts * burst_ms)), MIN_ROUNDS), most_rounds)
        return cls(calls=calls, bursts=bursts, rounds=rounds, call_ms=call_ms)


class Session:
    """Fresh processes of all environments; a context manager, whose end kills them.

    Args:
        environments: by role.
        suite: what they load.
        seed: of hashes, orders and inputs; the same in all processes.
        limit_s: maximum seconds of an answer.
        printed: shows the beginning of what they print.
    """

    def __init__(
        self,
        environments: Mapping[str, Environment],
        suite: Suite,
        *,
        seed: int,
        limit_s: float,
        printed: PrintedOutput,
    ) -> None:
        self._environments = environments
        self._suite = suite
        self._rng = np.random.default_rng(seed)
        self._hash_seed = int(self._rng.integers(MAX_HASH_SEED))
        self._limit_s = limit_s
        self._printed = printed
        self._processes: dict[str, AgentProcess] = {}
        self.loaded: dict[str, Loaded] = {}
        self.wall_ms: dict[str, list[float]] = {}
        """Milliseconds per call of each burst of the last measured benchmark, by the clock."""

    def __enter__(self) -> Self:
        try:
            self._start(self._environments)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.end()
        self._processes = {}

    def measure(self, name: str, plan: TurnPlan) -> Rounds:
        """Return the milliseconds per call of each burst, by role; or why a role has none."""
        failures = self._on_all("open", name=name)
        self.wall_ms = {role: [] for role in self._processes}
        cpu_ms: dict[str, list[float]] = {role: [] for role in self._processes}
        if not failures and plan.call_ms < WARM_UP_MS:
            failures = self._on_all("turn", calls=plan.calls, bursts=1, seed=self._new_seed())

        def turn(role: str, seed: int) -> None:
            times = self._ask(role, "turn", calls=plan.calls, bursts=plan.bursts, seed=seed)
            self.wall_ms[role] += _milliseconds(times["wall_ns"], plan.calls)
            cpu_ms[role] += _milliseconds(times["cpu_ns"], plan.calls)

        failures = failures or self._take_turns(plan.rounds, turn)
        if failures:
            self._close_others(failures)
            return Rounds({}, failures)

        # CPU times if all processes have them: other processes' load adds nothing to them.
        has_cpu = all(np.isfinite(times).mean() > CPU_SHARE for times in cpu_ms.values())
        times = cpu_ms if has_cpu else self.wall_ms
        return Rounds({role: np.array(values) for role, values in times.items()})

    def describe(self) -> dict[str, EnvironmentContents]:
        """Return what the processes have loaded by now, by role; those that answer."""
        found = {}
        for role in self._processes:
            try:
                answer = self._ask(role, "describe")
            except RequestFailed:
                continue
            found[role] = EnvironmentContents(**answer["environment"])
        return found

    def count_calls(self, name: str) -> TurnPlan:
        """Return how to time a benchmark, by the base; raise RequestFailed if it fails there."""
        seed = self._new_seed()
        self._ask(BASE, "open", name=name)
        count = self._ask(BASE, "count", seed=seed)
        self._ask(BASE, "close")
        return TurnPlan.of_count(int(count["calls"]), float(count["call_ns"]))

    def peak_memory(self, name: str) -> Rounds:
        """Return the peak memory of each process in one call, in MiB."""
        seed = self._new_seed()

        def peak_mib(role: str) -> float:
            peak = self._ask(role, "memory", seed=seed)["peak_mib"]
            return math.nan if peak is None else float(peak)

        return self._single_values(name, peak_mib)

    def _take_turns(self, rounds: int, turn: Callable[[str, int], None]) -> dict[str, str]:
        """Give each process a turn in every round, in a new order, and close the benchmark.

        ``turn`` takes a role and the round's seed. Returns why a process failed, by role.
        """
        for _ in range(rounds):
            seed = self._new_seed()
            for role in self._shuffled():
                try:
                    turn(role, seed)
                except RequestFailed as e:
                    return {role: str(e)}
        return self._on_all("close")

    def gpu_time(self, name: str, plan: TurnPlan) -> Rounds:
        """Return the milliseconds of each call on the GPU, by role; or why a role has none."""
        failures = self._on_all("open", name=name)
        gpu_ms: dict[str, list[float]] = {role: [] for role in self._processes}
        calls = min(max(round(GPU_TURN_MS / max(plan.call_ms, 1e-6)), 1), MAX_GPU_CALLS)

        # Kernels are compiled, and tune themselves, in a call that does not count.
        if not failures:
            failures = self._on_all("turn", calls=1, bursts=1, seed=self._new_seed())

        def turn(role: str, seed: int) -> None:
            gpu_ns = self._ask(role, "gpu", calls=calls, seed=seed)["gpu_ns"]
            gpu_ms[role] += _milliseconds(gpu_ns, calls=1)

        failures = failures or self._take_turns(MIN_ROUNDS, turn)
        if failures:
            self._close_others(failures)
            return Rounds({}, failures)
        return Rounds({role: np.array(values) for role, values in gpu_ms.items()})

    def energy(self, name: str, plan: TurnPlan, meter: PowerMeter) -> Rounds:
        """Return the energy of a call in each process, in millijoules.

        It is all that the meter's device took while the calls ran, other load included.
        """
        seed = self._new_seed()
        bursts = max(1, round(ENERGY_WINDOW_MS / max(plan.calls * plan.call_ms, 1e-6)))

        def energy_mj(role: str) -> float:
            with meter.window() as window:
                self._ask(role, "turn", calls=plan.calls, bursts=bursts, seed=seed)
            return 1e3 * window.joules / (plan.calls * bursts)

        return self._single_values(name, energy_mj)

    def outputs(self, name: str) -> dict[str, Any]:
        """Return the outputs of a call with the same seed, by role; raise RequestFailed."""
        failures = self._on_all("open", name=name)
        found = {}
        seed = self._new_seed()
        for role in self._processes:
            if failures:
                break
            try:
                found[role] = self._ask(role, "output", seed=seed)["output"]
            except RequestFailed as e:
                failures = {role: str(e)}
        failures = failures or self._on_all("close")
        if failures:
            self._close_others(failures)
            role, reason = next(iter(failures.items()))
            raise RequestFailed(f"{role}: {reason}")
        return found

    def _single_values(self, name: str, value_of: Callable[[str], float]) -> Rounds:
        """Return one value of each process, by role; or why a role has none."""
        failures = self._on_all("open", name=name)
        values = {}
        for role in self._shuffled():
            if failures:
                break
            try:
                values[role] = np.array([value_of(role)])
            except RequestFailed as e:
                failures = {role: str(e)}
        failures = failures or self._on_all("close")
        if failures:
            self._close_others(failures)
            return Rounds({}, failures)
        return Rounds(values)

    def _start(self, roles: Iterable[str]) -> None:
        """Start processes of some roles, in random order, and let them load the benchmarks."""
        roles = self._shuffled(roles)
        for role in roles:
            self._processes[role] = AgentProcess(
                self._environments[role], self._hash_seed, self._printed
            )
        answers = {}
        try:
            for role in roles:
                self._processes[role].send("load", **self._suite.request(role))
            for role in roles:
                answers[role] = self._processes[role].receive(limit_s=START_TIMEOUT_S)
        except RequestFailed as e:
            label = self._environments[role].label
            raise MeasurementError(f"no benchmark can be loaded in {role} ({label}): {e}") from e
        for role, answer in answers.items():
            self.loaded[role] = Loaded(
                benchmarks=tuple(map(str, answer["benchmarks"])),
                left_out={str(name): str(why) for name, why in answer["left_out"].items()},
                contents=EnvironmentContents(**answer["environment"]),
            )

    def _ask(self, role: str, do: str, **content: Any) -> dict[str, Any]:
        return self._processes[role].ask(do, limit_s=self._limit_s, **content)

    def _on_all(self, do: str, **content: Any) -> dict[str, str]:
        """Send an untimed request to all processes at once; return failures by role."""
        failures = {}
        for role in self._shuffled():
            try:
                self._processes[role].send(do, **content)
            except RequestFailed as e:
                failures[role] = str(e)
        for role, process in self._processes.items():
            if role in failures:
                continue
            try:
                process.receive(limit_s=self._limit_s)
            except RequestFailed as e:
                failures[role] = str(e)
        return failures

    def _close_others(self, failures: Mapping[str, str]) -> None:
        """Close a benchmark that failed in some process; start processes anew that have ended."""
        for role, process in self._processes.items():
            if role not in failures and process.is_alive:
                # It may be closed already.
                try:
                    self._ask(role, "close")
                except RequestFailed:
                    continue
        ended = [role for role, process in self._processes.items() if not process.is_alive]
        self._start(ended)

    def _shuffled(self, roles: Iterable[str] | None = None) -> list[str]:
        listed = list(self._processes if roles is None else roles)
        return [listed[i] for i in self._rng.permutation(len(listed))]

    def _new_seed(self) -> int:
        return int(self._rng.integers(1, 2**31))


def _milliseconds(nanoseconds: Sequence[int | None], calls: int) -> list[float]:
    return [math.nan if ns is None else ns * 1e-6 / calls for ns in nanoseconds]
