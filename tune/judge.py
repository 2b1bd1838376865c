"""The verifier for a third party's implementation."""

import math
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd

from foretune.collect.comparison import DEFAULT_REPEATED, Rounds
from foretune.collect.isolated_implementation import CallOutputs, Code, IsolatedImplementation
from foretune.collect.machine_load import LoadMonitor
from foretune.collect.worker_process import WorkerProcess
from foretune.collect.wrapped.values import relative_difference
from foretune.device import Device
from foretune.errors import ForetuneError, MeasurementError, UsageError
from foretune.problem import Problem
from foretune.result import Result
from foretune.support.progress import SILENT, Progress
from foretune.tune.results import Comparison, NoiseEstimate, Outcome
from foretune.tune.verifier import ERROR, LOOKS, Evidence

CHECK_SEEDS = 3
"""Number of seeds whose outputs are all checked before anything is timed."""
MIN_ROUNDS = 5
"""Rounds of each process, however slow."""
MAX_ROUNDS = 60
"""Rounds of each process, however fast."""
OUTPUT_CHECK_SHARE = 1 / 3
"""Share of timed rounds, chosen at random, whose outputs are also checked."""
MAX_CLOCK_RATIO = 1.5
"""Maximum ratio of the time by the judge's clock to a contestant's own; processes have overhead."""
MAX_SLOWED = 4.0
"""Maximum slow-down of the candidate, seen on the reference, that is attributed to other load."""
CLOCK_OVERHEAD_MS = 0.002
"""Maximum time to read a clock."""
OVERHEAD_SAMPLES = 5
"""Measurements of the time that a request takes; the fastest counts."""
MAX_BURSTS = 40
"""Bursts of calls after which a clock that differs is not attributed to other load."""
BURST_S = 0.02
"""Minimum seconds of a burst: the noise of a request could hide a shorter one."""
CANDIDATE = "candidate"
REFERENCE = "reference"
REFERENCE_REPEATED = DEFAULT_REPEATED
_PICKLE_ADVICE = ("the function", "name it FILE.py:NAME")


@dataclass(frozen=True)
class ProblemVerdict:
    """The comparison on one problem, with the candidate's largest error over all checked outputs.

    `against` compares the candidate with each rival, the fastest first; a comparison's ``value`` is
    the candidate's time in ms. `time_ms` has the times by name of implementation.
    """

    problem: Problem
    against: tuple[Comparison, ...]
    time_ms: Mapping[str, float]
    processes: int
    rounds: int
    noise: NoiseEstimate
    relative_error: float

    @property
    def candidate(self) -> Comparison:
        """The candidate compared with the fastest rival."""
        return self.against[0]


@dataclass(frozen=True, eq=False, repr=False)
class Verdict(Result):
    """Whether a candidate is correct, and its speed against the best rival.

    Attributes:
        refused: why it was rejected, with the problem; empty if accepted.
        problem_verdicts: one per compared problem; empty if rejected.
    """

    refused: str
    problem_verdicts: tuple[ProblemVerdict, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether all outputs were correct and all calls ended in time."""
        return not self.refused

    @property
    def speedup(self) -> float:
        """Geometric mean over problems of the speed-up over the best rival; NaN without one."""
        return self._geometric_mean("ratio")

    @property
    def interval(self) -> tuple[float, float]:
        """Geometric means of the bounds of the problems' 99 % intervals."""
        return self._geometric_mean("ratio_low"), self._geometric_mean("ratio_high")

    def _geometric_mean(self, figure: str) -> float:
        figures = [getattr(verdict.candidate, figure) for verdict in self.problem_verdicts]
        return geometric_mean(figures) if figures else math.nan

    @property
    def outcome(self) -> Outcome:
        """Whether the candidate beats every rival over all problems."""
        if self.refused:
            return "no_win"
        return Comparison("", None, math.nan, self.speedup, *self.interval).verdict

    @property
    def faster(self) -> bool:
        """Whether the candidate significantly beats every rival."""
        return self.outcome == "win"

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        if self.refused:
            return f"refused: {self.refused}"
        low, high = self.interval
        words = {"win": "faster", "no_win": "no faster", "inconclusive": "inconclusive"}
        return (
            f"correct, and {words[self.outcome]}: {self.speedup:.2f}× the best rival "
            f"({low:.2f}–{high:.2f})"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row per problem: its times by implementation, and the speed-up."""
        rows = [
            {"problem": str(r.problem), **r.time_ms, "speedup": r.candidate.ratio}
            for r in self.problem_verdicts
        ]
        return pd.DataFrame(rows or [{"refused": self.refused}])

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict for the command line's JSON output."""
        problems = [
            {
                "problem": dict(r.problem),
                "processes": r.processes,
                "rounds": r.rounds,
                "relative_error": r.relative_error,
                "noise": asdict(r.noise),
                "time_ms": dict(r.time_ms),
                "speedup": r.candidate.ratio,
                "speedup_interval": [r.candidate.ratio_low, r.candidate.ratio_high],
                "rival": r.candidate.name,
            }
            for r in self.problem_verdicts
        ]
        return {
            "accepted": self.accepted,
            "refused": self.refused,
            "faster": self.faster,
            "verdict": self.outcome,
            "speedup": self.speedup,
            "speedup_interval": [*self.interval],
            "problems": problems,
        }


class CandidateRejected(Exception):
    """The candidate is rejected; the message is the reason."""


def judge(
    candidate: Code,
    reference: Code,
    problems: Sequence[Mapping[str, Any]],
    *,
    inputs: Code,
    rivals: Mapping[str, Code] | None = None,
    tolerance: float = 1e-4,
    session_s: float = 0.5,
    limit_s: float = 30.0,
    device: Device | None = None,
    progress: Progress = SILENT,
) -> Verdict:
    """Check whether ``candidate`` computes the same as ``reference``, and how much faster.

    Functions of the running script are sent to other processes. ``"FILE.py:NAME"`` is loaded there,
    so that no code of the candidate runs in this process.

    Args:
        candidate: the implementation to judge.
        reference: a correct implementation. Both get the same positional arguments, and return
            their outputs or write them into arguments.
        problems: parameters of ``inputs``; give several shapes, to catch code that is correct for
            one only.
        inputs: ``inputs(**problem, seed=…)`` returns the arguments: arrays, tensors, numbers. Other
            seeds must give other values.
        rivals: other implementations by name, such as a library call, ``torch.compile`` of the
            reference or a tuned kernel. The speed-up is over the fastest rival or reference.
        tolerance: maximum accepted ``‖output − reference‖ / ‖reference‖``.
        session_s: seconds of rounds in each process, per problem.
        limit_s: maximum seconds of one call, including loading and compiling.
        device: the device whose load is observed; by default the CPU.
        progress: advanced with every problem.

    Raises:
        UsageError: there is no problem, a name has no function, or the reference's output does not
            depend on the inputs.
        MeasurementError: the reference, a rival or ``inputs`` fails.
    """
    wanted = [Problem(p) for p in problems]
    if not wanted:
        raise UsageError("no problem is given: give at least one")
    codes = _codes(candidate, reference, rivals or {}, inputs)
    processes = {
        name: WorkerProcess(partial(IsolatedImplementation, code, inputs), _PICKLE_ADVICE)
        for name, code in codes.items()
    }
    with closing(JudgeBenchmark(processes, tolerance, limit_s)) as bench:
        try:
            bench.load(wanted[0])
            progress.start("checking", len(wanted))
            for problem in wanted:
                bench.check(problem)
                progress.advance(str(problem))
            progress.start("comparing", len(wanted))
            verdicts = []
            watched = device or Device("CPU", "cpu")
            for problem in wanted:
                verdicts.append(bench.compare(problem, session_s, LoadMonitor(watched)))
                progress.advance(str(problem))
        except CandidateRejected as e:
            return Verdict(str(e))
    return Verdict("", tuple(verdicts))


def _codes(
    candidate: Code, reference: Code, rivals: Mapping[str, Code], inputs: Code
) -> dict[str, Code]:
    # The reference comes first: what is wrong with the inputs is not the candidate's fault.
    codes = {REFERENCE: reference, CANDIDATE: candidate, **rivals}
    for code in (inputs, *codes.values()):
        if not isinstance(code, str):
            continue
        file, colon, _ = code.rpartition(":")
        if not colon:
            raise UsageError(f"{code} names no function: write {code}:NAME")
        if file.endswith(".py") and not Path(file).is_file():
            raise UsageError(f"there is no file {file}: give FILE.py:NAME or MODULE:NAME")
    codes[REFERENCE_REPEATED] = reference
    if len(codes) != 3 + len(rivals):
        raise UsageError(
            f"{CANDIDATE!r}, {REFERENCE!r} and {REFERENCE_REPEATED!r} are names that the judge uses"
        )
    return codes


class JudgeBenchmark:
    """Runs each contestant in its own process.

    Raises CandidateRejected if the candidate fails or is wrong, MeasurementError if another does.
    """

    def __init__(
        self, implementations: Mapping[str, WorkerProcess], tolerance: float, limit_s: float
    ) -> None:
        self.implementations = implementations
        self.tolerance = tolerance
        self.limit_s = limit_s
        self.max_error = 0.0
        self._random = random.Random(secrets.randbits(64))

    def close(self) -> None:
        """End all processes."""
        for service in self.implementations.values():
            service.close()

    def load(self, problem: Problem) -> None:
        """Load all contestants, each in its process; UsageError if a name has no function."""
        for name in self.implementations:
            if unknown := self._call(name, problem, "load", *self._new_seeds(1)):
                raise UsageError(str(unknown))

    def check(self, problem: Problem) -> None:
        """Check all outputs; UsageError if the reference's output is the same for all inputs."""
        correct = []
        for seed in self._new_seeds(CHECK_SEEDS):
            for name in self.implementations:
                self._call(name, problem, "run", seed)
            correct.append(self._compare_outputs(problem))
        if _equal_outputs(correct[0], correct[1]):
            raise UsageError(
                f"the reference gives the same for all inputs of {problem}, so nothing can be "
                "checked: let inputs() use its seed, or choose another problem"
            )

    def compare(self, problem: Problem, session_s: float, watch: LoadMonitor) -> ProblemVerdict:
        """Compare the candidate with the rivals in fresh processes, until the winner is clear."""
        self.max_error = 0.0
        evidence = Evidence(REFERENCE, REFERENCE_REPEATED)
        own_names = (CANDIDATE, REFERENCE_REPEATED)
        rivals = [name for name in self.implementations if name not in own_names]
        with watch:
            for processes, share in LOOKS.items():
                # Measure until the next look at the data; the looks share the error.
                while len(evidence) < processes:
                    rounds = self._session(problem, session_s)
                    evidence.add(rounds)
                against = [
                    evidence.compare(rival, CANDIDATE, rival, None, ERROR * share)
                    for rival in rivals
                ]

                # The fastest rival decides.
                against.sort(key=lambda comparison: comparison.ratio)
                if against[0].verdict != "inconclusive":
                    break

        # The processes told their times themselves.
        told_ms = {name: float(np.median(times)) for name, times in rounds.time_ms.items()}
        self._verify_clock(problem, told_ms)
        return ProblemVerdict(
            problem=problem,
            against=tuple(against),
            time_ms={name: evidence.value(name) for name in (CANDIDATE, *rivals)},
            processes=len(evidence),
            rounds=evidence.rounds,
            noise=evidence.noise(watch.load),
            relative_error=self.max_error,
        )

    def _session(self, problem: Problem, session_s: float) -> Rounds:
        """Time all contestants in interleaved rounds of fresh processes, each with new inputs."""
        self.close()
        names = list(self.implementations)
        times: dict[str, list[float]] = {name: [] for name in names}

        # The first call loads the code and warms up.
        for name in names:
            self._call(name, problem, "run", *self._new_seeds(1))

        deadline = time.monotonic() + session_s
        for number in range(MAX_ROUNDS):
            if number >= MIN_ROUNDS and time.monotonic() > deadline:
                break
            (seed,) = self._new_seeds(1)
            for name in self._random.sample(names, len(names)):
                times[name].append(self._call(name, problem, "run", seed))
            if self._random.random() < OUTPUT_CHECK_SHARE:
                self._compare_outputs(problem)
        self._compare_outputs(problem)
        return Rounds({name: np.array(ms) for name, ms in times.items()})

    def _compare_outputs(self, problem: Problem) -> CallOutputs:
        """Compare the outputs of the last calls; return the correct ones."""
        expected: CallOutputs = self._call(REFERENCE, problem, "outputs")
        for name in self.implementations:
            if name == REFERENCE:
                continue
            output = self._call(name, problem, "outputs")
            with self._attribute_errors(name, problem):
                error = _relative_error(output, expected)
                if not error <= self.tolerance:
                    raise CandidateRejected(
                        f"wrong: relative error {error:.2g} is above {self.tolerance:.2g}"
                    )
            if name == CANDIDATE:
                self.max_error = max(self.max_error, error)
        return expected

    def _verify_clock(self, problem: Problem, time_ms: Mapping[str, float]) -> None:
        """Check the candidate's times against bursts timed by this process's clock.

        Other load on the machine also lengthens the bursts of the reference.
        """
        (seed,) = self._new_seeds(1)
        burst_ms = {CANDIDATE: math.inf, REFERENCE: math.inf}
        calls = dict.fromkeys(burst_ms, 1)
        request_s = min(self._burst_s(CANDIDATE, problem, seed, 0) for _ in range(OVERHEAD_SAMPLES))

        # One burst that other load did not disturb is enough.
        for _ in range(MAX_BURSTS):
            for name in burst_ms:
                seconds = self._burst_s(name, problem, seed, calls[name]) - request_s
                if seconds < BURST_S:
                    calls[name] *= 2
                else:
                    burst_ms[name] = min(burst_ms[name], 1e3 * seconds / calls[name])
            slowed = _slow_down(burst_ms[REFERENCE], time_ms[REFERENCE])
            allowed_ms = MAX_CLOCK_RATIO * slowed * time_ms[CANDIDATE] + CLOCK_OVERHEAD_MS
            if burst_ms[CANDIDATE] <= allowed_ms:
                return
        raise CandidateRejected(
            f"its process says {time_ms[CANDIDATE]:.3g} ms, the judge's clock "
            f"{burst_ms[CANDIDATE]:.3g} ms, on {problem}"
        )

    def _burst_s(self, name: str, problem: Problem, seed: int, calls: int) -> float:
        """Return the seconds that some calls take by this process's clock."""
        start = time.perf_counter()
        self._call(name, problem, "run_repeatedly", seed, calls)
        return time.perf_counter() - start

    def _call(self, name: str, problem: Problem, method: str, *arguments: Any) -> Any:
        call_arguments = () if method == "outputs" else (dict(problem), *arguments)
        with self._attribute_errors(name, problem):
            return self.implementations[name].call(method, *call_arguments, limit_s=self.limit_s)

    @contextmanager
    def _attribute_errors(self, name: str, problem: Problem) -> Any:
        """Return a context that rejects the candidate for its errors; other errors are raised."""
        try:
            yield
        except (CandidateRejected, TimeoutError, ChildProcessError, ForetuneError) as e:
            message = (
                f"did not end within {self.limit_s:g} s" if isinstance(e, TimeoutError) else str(e)
            )
            if name == CANDIDATE:
                raise CandidateRejected(
                    message if "on " + str(problem) in message else f"{message}, on {problem}"
                ) from e
            raise MeasurementError(f"{name} cannot be compared on {problem}: {message}") from e

    def _new_seeds(self, n: int) -> list[int]:
        return [self._random.getrandbits(32) for _ in range(n)]


def _slow_down(burst_ms: float, time_ms: float) -> float:
    """Return how much other load slows the reference, between 1 and `MAX_SLOWED`."""
    slowed = burst_ms / time_ms
    if not math.isfinite(slowed):
        return 1.0
    return min(max(slowed, 1.0), MAX_SLOWED)


def _equal_outputs(one: CallOutputs, other: CallOutputs) -> bool:
    try:
        return _relative_error(one, other) == 0.0
    except CandidateRejected:  # their shapes differ
        return False


def _relative_error(output: CallOutputs, expected: CallOutputs) -> float:
    """Return the largest relative error; reject outputs of another number, shape or type."""
    for number in sorted(output.written.keys() - expected.written.keys()):
        raise CandidateRejected(
            f"it changes its argument {number}, which the reference does not change"
        )
    for number in sorted(expected.written.keys() - output.written.keys()):
        raise CandidateRejected(f"it does not write into its argument {number}")
    if len(output.returned) != len(expected.returned):
        raise CandidateRejected(
            f"it returns {len(output.returned)} arrays instead of {len(expected.returned)}"
        )
    pairs = [
        *zip(output.returned, expected.returned, strict=True),
        *((output.written[i], expected.written[i]) for i in sorted(expected.written)),
    ]
    for ours, theirs in pairs:
        if ours.kind != theirs.kind:
            raise CandidateRejected(f"it gives {ours.kind} instead of {theirs.kind}")
        if ours.values.shape != theirs.values.shape:
            raise CandidateRejected(
                f"it gives shape {ours.values.shape} instead of {theirs.values.shape}"
            )
    return max((relative_difference(o.values, t.values) for o, t in pairs), default=0.0)
