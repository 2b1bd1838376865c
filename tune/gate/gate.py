"""The gate: sessions of all environments until each benchmark's verdict is clear, or time is up.

Time goes where it decides most. A benchmark with a clear verdict is left out of later sessions. If
the rest of the budget is too short for all open ones until the next look, those are left out that
could not be decided in it anyway, the most hopeless first.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from foretune.collect.comparison import Rounds
from foretune.collect.machine_load import LoadMonitor
from foretune.collect.power import PowerMeter, explain_missing_meter, find_meter
from foretune.collect.printed_output import PrintedOutput
from foretune.device import Device
from foretune.errors import MeterUnavailable, UsageError
from foretune.result import Result, plain
from foretune.support.progress import SILENT, Progress
from foretune.tune.gate.agent_process import RequestFailed
from foretune.tune.gate.case import Case, Metric
from foretune.tune.gate.environment import (
    AGAIN,
    BASE,
    HEAD,
    Environment,
    EnvironmentContents,
)
from foretune.tune.gate.measured_code import require_own_code
from foretune.tune.gate.session import Loaded, Session, Suite, TurnPlan
from foretune.tune.gate.verdicts import (
    LOOKS,
    OPEN,
    RED,
    RED_ERROR,
    RELEVANT,
    BenchmarkVerdict,
    Word,
)
from foretune.tune.results import Comparison, NoiseEstimate
from foretune.values import counted

BUDGET_S = 60.0
"""Seconds of measuring, by default."""
LIMIT_S = 60.0
"""Maximum seconds of one answer of an agent, by default."""
MIN_SESSIONS = 3
"""Sessions of any gate, whatever its budget: an interval from two says nothing."""


@dataclass(frozen=True)
class GateOptions:
    """How a gate measures and decides.

    Attributes:
        budget_s: seconds of measuring.
        relevant: relative change that counts.
        metrics: which of ``time``, ``gpu``, ``memory`` and ``energy`` are compared.
        only: keeps benchmarks whose name contains one of these texts; empty keeps all.
        limit_s: maximum seconds of one answer.
        seed: of orders, hashes and inputs.
        compares_outputs: whether outputs of both revisions are compared.
        looks: numbers of sessions at which the data is evaluated, with their shares of the error.
    """

    budget_s: float = BUDGET_S
    relevant: float = RELEVANT
    metrics: tuple[Metric, ...] = ("time",)
    only: tuple[str, ...] = ()
    limit_s: float = LIMIT_S
    seed: int = 0
    compares_outputs: bool = False
    looks: Mapping[int, float] = field(default_factory=lambda: dict(LOOKS))


@dataclass(frozen=True, eq=False, repr=False)
class GateResult(Result):
    """The verdicts of a gate.

    Attributes:
        base, head: labels of the two revisions.
        verdicts: one per benchmark and metric.
        left_out: what is no benchmark, by name, with the reason.
        changes: what differs between the revisions besides the measured code.
        output_differences: by benchmark, if outputs were compared.
        relevant: relative change that counts.
        sessions: number of sessions.
        seconds: wall time of measuring.
        noise: other load on the machine.
    """

    base: str
    head: str
    verdicts: tuple[BenchmarkVerdict, ...]
    left_out: Mapping[str, str]
    changes: tuple[str, ...]
    output_differences: Mapping[str, str]
    relevant: float
    sessions: int
    seconds: float
    noise: NoiseEstimate

    def having(self, *words: Word) -> list[BenchmarkVerdict]:
        """Return the verdicts with one of these words."""
        return [verdict for verdict in self.verdicts if verdict.word in words]

    @property
    def is_red(self) -> bool:
        """Whether something is slower or fails, or outputs differ."""
        return bool(self.having(*RED) or self.output_differences)

    def exit_code(self, strict: bool = False) -> int:
        """Return 1 if red; with ``strict``, 2 if a verdict is open; otherwise 0."""
        if self.is_red:
            return 1
        return 2 if strict and self.having(*OPEN) else 0

    @property
    def color(self) -> str:
        """``red``, ``green``, or ``undecided`` if there is no clear verdict at all."""
        if self.is_red:
            return "red"
        is_undecided = len(self.having(*OPEN)) == len(self.verdicts)
        return "undecided" if is_undecided else "green"

    @property
    def headline(self) -> str:
        """How many benchmarks have which verdict."""
        words: tuple[Word, ...] = ("slower", "fails", "faster", "same", *OPEN)
        counts = [(len(self.having(word)), word) for word in words]
        parts = [f"{count} {word}" for count, word in counts if count]
        if self.output_differences:
            parts.append(f"{len(self.output_differences)} with other outputs")
        return f"{self.color}: {', '.join(parts)} ({self.base} → {self.head})"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per benchmark and metric."""
        return pd.DataFrame([verdict_row(verdict) for verdict in self.verdicts])

    def to_dict(self) -> dict[str, Any]:
        """Return the result for the command line's JSON output."""
        fields = plain(self, as_json=True)
        rows = [plain(verdict_row(verdict), as_json=True) for verdict in self.verdicts]
        return {**fields, "verdicts": rows, "red": self.is_red}


def verdict_row(verdict: BenchmarkVerdict) -> dict[str, Any]:
    """Return a verdict as a flat row."""
    return {
        "benchmark": verdict.name,
        "metric": verdict.metric,
        "verdict": verdict.word,
        "base": verdict.base_value,
        "head": verdict.comparison.value,
        "change": verdict.change,
        "change_low": verdict.change_low,
        "change_high": verdict.change_high,
        "sessions": verdict.sessions,
        "noise_low": verdict.noise_low,
        "noise_high": verdict.noise_high,
        "advice": verdict.advice,
    }


def run_gate(
    environments: Mapping[str, Environment],
    suite: Suite,
    options: GateOptions | None = None,
    *,
    progress: Progress = SILENT,
    on_rounds: Callable[[str, str, Rounds], None] | None = None,
) -> GateResult:
    """Compare the head with the base in all benchmarks.

    Args:
        environments: those of the roles ``base``, ``head`` and ``again``.
        suite: the benchmarks.
        options: how to measure and decide.
        progress: advanced with each session.
        on_rounds: called with benchmark, metric and rounds after each measurement.

    Raises:
        UsageError: no benchmark is there.
        MeasurementError: the benchmarks cannot be loaded, or both environments load the same code.
        MeterUnavailable: the energy is a metric, and this machine has no meter.
    """
    gate = _Gate(environments, suite, options or GateOptions(), progress, on_rounds)
    with LoadMonitor(Device("CPU", "cpu")) as watch:
        gate.run()
    return gate.result(watch)


class _Gate:
    """The state of a gate that runs."""

    def __init__(
        self,
        environments: Mapping[str, Environment],
        suite: Suite,
        options: GateOptions,
        progress: Progress,
        on_rounds: Callable[[str, str, Rounds], None] | None,
    ) -> None:
        self._environments = environments
        self._suite = suite
        self._options = options
        self._progress = progress
        self._on_rounds = on_rounds or (lambda name, metric, rounds: None)
        self._rng = np.random.default_rng(options.seed)
        self._meter = _energy_meter(self._options.metrics)
        self._printed = PrintedOutput()
        self._plans: dict[str, TurnPlan] = {}
        self._cases: list[Case] = []
        self._loaded: dict[str, Loaded] = {}
        self._differences: dict[str, str] = {}
        self._not_in_both: dict[str, str] = {}
        self._notes: list[str] = []
        self._sessions = 0
        self._start_s = 0.0
        """Longest seconds in which a session's processes start and load the benchmarks."""
        self._began = time.monotonic()

    @property
    def _left_s(self) -> float:
        return self._options.budget_s - (time.monotonic() - self._began)

    def run(self) -> None:
        """Run sessions until all verdicts are clear, or the time or the last look is over."""
        looks = self._options.looks
        self._progress.start("gate", max(looks))
        self._run_first_session()

        # The looks and the benchmarks share the error. If the time is up before a planned look, the
        # data is evaluated at once, for the last time, so that look gets all that is left. With
        # shares of 0.1 at 6 sessions and 0.2 at 9, a gate that ends after 7 evaluates with 0.1,
        # then with 0.9.
        used_share = 0.0
        for sessions, planned_share in looks.items():
            is_time_up = not self._run_sessions_until(sessions)
            share = 1.0 - used_share if is_time_up else planned_share
            used_share += share
            error = RED_ERROR * share / max(len(self._cases), 1)
            for case in self._open_cases():
                case.look(error, self._options.relevant)
            if is_time_up or not self._open_cases():
                break

    def _run_first_session(self) -> None:
        """Find all cases, and measure them."""
        with self._started_session() as session:
            self._find_cases(session)
            self._measure_all(session, self._cases)
            # Some benchmarks import what they measure when they run.
            self._require_own_code(session.describe())
            if self._options.compares_outputs:
                self._compare_outputs(session)

    def _run_sessions_until(self, sessions: int) -> bool:
        """Run sessions until there are so many; return False if the time is up before."""
        while self._sessions < sessions:
            cases = self._affordable(wanted=sessions - self._sessions)
            has_enough = self._sessions >= MIN_SESSIONS
            if has_enough and self._session_s(cases) > self._left_s:
                return False
            with self._started_session() as session:
                self._measure_all(session, cases)
        return True

    @contextmanager
    def _started_session(self) -> Iterator[Session]:
        """Start fresh processes for one session; afterwards, estimate how many more it takes."""
        started = time.monotonic()
        session = Session(
            self._environments,
            self._suite,
            seed=int(self._rng.integers(2**31)),
            limit_s=self._options.limit_s,
            printed=self._printed,
        )
        with session:
            self._start_s = max(self._start_s, time.monotonic() - started)
            yield session
        self._sessions += 1
        self._progress.advance()
        self._estimate_widths()

    def _measure_all(self, session: Session, cases: Sequence[Case]) -> None:
        """Measure cases in random order."""
        for number in self._rng.permutation(len(cases)):
            self._measure(session, cases[number])

    def _measure(self, session: Session, case: Case) -> None:
        started = time.monotonic()
        if case.metric == "memory":
            rounds = session.peak_memory(case.name)
        elif case.metric == "gpu":
            rounds = session.gpu_time(case.name, self._plan(session, case.name))
        elif self._meter is not None and case.metric == "energy":
            rounds = session.energy(case.name, self._plan(session, case.name), self._meter)
        else:
            rounds = self._time(session, case.name)
        case.add(rounds, took_s=time.monotonic() - started)
        self._on_rounds(case.name, case.metric, rounds)

    def _time(self, session: Session, name: str) -> Rounds:
        return session.measure(name, self._plan(session, name))

    def _plan(self, session: Session, name: str) -> TurnPlan:
        """Return how a benchmark is timed."""
        if name not in self._plans:
            try:
                self._plans[name] = session.count_calls(name)
            except RequestFailed:
                # Measuring says in which revisions it fails. Once may be the machine's fault, so
                # the next session counts again; after `MAX_FAILURES`, the case is closed.
                return TurnPlan(calls=1, bursts=1, rounds=1, call_ms=0.0)
        return self._plans[name]

    def _find_cases(self, session: Session) -> None:
        """List the benchmarks of both revisions; refuse a suite that compares nothing."""
        self._loaded = dict(session.loaded)
        names = {role: loaded.benchmarks for role, loaded in self._loaded.items()}
        in_both = [name for name in names[BASE] if name in names[HEAD] and name in names[AGAIN]]
        for name in sorted({*names[BASE], *names[HEAD]} - {*in_both}):
            where = self._environments[HEAD if name in names[HEAD] else BASE].label
            self._not_in_both[name] = f"it is in {where} only"
        chosen = [name for name in in_both if self._is_chosen(name)]
        if not chosen:
            raise UsageError(self._explain_no_benchmark(in_both))
        if self._suite.copied is None:
            self._require_own_code({role: known.contents for role, known in self._loaded.items()})
        self._cases = [Case(name, metric) for name in chosen for metric in self._options.metrics]

    def _require_own_code(self, contents: Mapping[str, EnvironmentContents]) -> None:
        """Raise MeasurementError if both revisions would run the same code."""
        if not {BASE, HEAD} <= contents.keys():
            return  # a process that ended has loaded nothing yet
        self._notes = require_own_code(
            self._environments,
            contents,
            benchmarks=self._loaded[HEAD].benchmarks,
            suite_path=self._suite.path.get(HEAD, ""),
            copied=self._suite.copied,
            helpers=self._suite.helpers,
        )

    def _is_chosen(self, name: str) -> bool:
        return not self._options.only or any(text in name for text in self._options.only)

    def _explain_no_benchmark(self, in_both: Sequence[str]) -> str:
        if in_both:
            return f"no benchmark's name contains {self._options.only[0]!r}, like {in_both[0]}"
        reasons = {**self._loaded[HEAD].left_out, **self._not_in_both}
        for name, reason in reasons.items():
            return f"no benchmark runs: {name}: {reason}"
        return (
            "no benchmark is found: give a folder with functions bench_*, tests with the fixture "
            "benchmark, or classes with time_* methods; or --command"
        )

    def _compare_outputs(self, session: Session) -> None:
        from foretune.tune.gate.outputs import describe_difference

        for name in dict.fromkeys(case.name for case in self._cases if case.is_open):
            try:
                outputs = session.outputs(name)
            except RequestFailed:
                continue  # a failure has its own verdict
            difference = describe_difference(outputs[HEAD], outputs[BASE])
            # Some outputs differ from run to run.
            if difference and not describe_difference(outputs[AGAIN], outputs[BASE]):
                self._differences[name] = difference

    def _open_cases(self) -> list[Case]:
        return [case for case in self._cases if case.is_open]

    def _estimate_widths(self) -> None:
        """Estimate how wide the intervals are, to plan: no verdict rests on it."""
        if self._sessions < MIN_SESSIONS:
            return
        error = RED_ERROR / max(len(self._cases), 1)
        for case in self._open_cases():
            case.estimate(error)

    def _session_s(self, cases: Sequence[Case]) -> float:
        return self._start_s + sum(case.longest_s for case in cases)

    def _affordable(self, wanted: int) -> list[Case]:
        """Return the open cases that the rest of the budget allows to measure ``wanted`` times."""
        cases = self._open_cases()
        if self._sessions < MIN_SESSIONS:
            return cases  # nothing is known that could choose
        relevant = self._options.relevant
        by_need = sorted(cases, key=lambda case: case.needed_sessions(relevant))
        while len(by_need) > 1 and wanted * self._session_s(by_need) > self._left_s:
            alone_s = self._session_s(by_need[-1:])
            possible = self._sessions + self._left_s / max(alone_s, 1e-9)
            if by_need[-1].needed_sessions(relevant) <= possible:
                break
            by_need.pop()
        return [case for case in cases if case in by_need]

    def result(self, watch: LoadMonitor) -> GateResult:
        """Return the verdicts."""
        load = watch.load
        changes = self._loaded[BASE].contents.changes_to(self._loaded[HEAD].contents)
        return GateResult(
            base=self._environments[BASE].label,
            head=self._environments[HEAD].label,
            verdicts=tuple(self._verdicts(watch)),
            left_out=self._loaded[HEAD].left_out,
            changes=(*changes, *self._notes),
            output_differences=dict(self._differences),
            relevant=self._options.relevant,
            sessions=self._sessions,
            seconds=time.monotonic() - self._began,
            noise=NoiseEstimate(
                disturbed=load.disturbance, others=load.other_load, stolen=load.steal
            ),
        )

    def _verdicts(self, watch: LoadMonitor) -> Iterator[BenchmarkVerdict]:
        unknown = Comparison(
            name="unknown",
            config=None,
            value=np.nan,
            ratio=np.nan,
            ratio_low=np.nan,
            ratio_high=np.nan,
        )
        for case in self._cases:
            noise = case.evidence.noise(watch.load)
            yield BenchmarkVerdict(
                name=case.name,
                metric=case.metric,
                word=case.word,
                comparison=case.comparison or unknown,
                base_value=case.evidence.value(BASE),
                sessions=len(case.evidence),
                noise_low=noise.again_low,
                noise_high=noise.again_high,
                advice=self._advice(case),
            )
        for name, reason in self._not_in_both.items():
            if self._is_chosen(name):
                yield BenchmarkVerdict(
                    name, "time", "not compared", unknown, np.nan, sessions=0, advice=reason
                )

    def _advice(self, case: Case) -> str:
        """Return what is wrong, or how long a verdict would take; empty if it is clear."""
        if case.word in ("fails", "not compared"):
            role, reason = case.last_failure
            return f"in {self._environments[role].label}: {reason}"
        if case.word != "cannot tell":
            return ""
        needed = case.needed_sessions(self._options.relevant)
        if not needed:
            return "too few sessions: give a larger budget"
        more_s = (needed - len(case.evidence)) * self._session_s([case])
        return f"about {counted(round(needed), 'session')}, {_duration(more_s)} more"


def _energy_meter(metrics: Sequence[Metric]) -> PowerMeter | None:
    """Return the meter of the CPU if the energy is a metric."""
    if "energy" not in metrics:
        return None
    meter = find_meter("cpu")
    if meter is None:
        reason = explain_missing_meter("cpu")
        raise MeterUnavailable(f"--metric energy needs a power meter: {reason}")
    return meter


def _duration(seconds: float) -> str:
    if not seconds < 3600:
        return "over an hour"
    return f"{max(seconds, 1):.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
