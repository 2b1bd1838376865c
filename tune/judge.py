"""The verifier for a third party's implementation."""

import random
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from foretune.collect.comparison import DEFAULT_REPEATED, Rounds
from foretune.collect.isolated_implementation import (
    PARAMETER,
    CallOutputs,
    Code,
    IsolatedImplementation,
    Work,
)
from foretune.collect.machine_load import LoadMonitor
from foretune.collect.worker_process import WorkerProcess
from foretune.collect.wrapped.output_comparison import ComparisonRules, output_error
from foretune.collect.wrapped.special_values import SPECIAL_VALUES, SpecialValues
from foretune.device import Device
from foretune.errors import ForetuneError, MeasurementError, UsageError
from foretune.kernel import WrongResult
from foretune.problem import Problem
from foretune.support.progress import SILENT, Progress
from foretune.tune.judged_outputs import (
    OtherOutput,
    accepts_special_values,
    equal_outputs,
    output_difference,
    parts_of,
    rounding_shift,
)
from foretune.tune.verdict import ProblemVerdict, Verdict
from foretune.tune.verifier import ERROR, LOOKS, Evidence

CHECK_SEEDS = 3
"""Number of seeds whose outputs are all checked before anything is timed."""
MIN_ROUNDS = 5
"""Rounds of each process, however slow."""
MAX_ROUNDS = 60
"""Rounds of each process, however fast."""
OUTPUT_CHECK_SHARE = 1 / 3
"""Share of timed rounds, chosen at random, whose outputs are also checked."""
BURST_S = 0.004
"""Calls are timed together until the reference takes as long: asking then takes a small share."""
MAX_CANDIDATE_BURST_S = 0.25
"""Calls are timed together for at most this long, if the candidate is much slower."""
MAX_BURST = 256
"""Largest number of calls that are timed together, each with inputs of its own."""
MAX_BURST_BYTES = 1 << 26
"""Largest size of all inputs of the calls that are timed together."""
OVERHEAD_SAMPLES = 9
"""Measurements of the time that a request takes; the fastest counts."""
CLOCK_NOISE = 0.1
"""Largest share of the time by the judge's clock that a contestant's own clock may miss or add."""
CLOCK_NOISE_MS = 0.1
"""The same in milliseconds: the duration of an answer differs between processes."""
CLOCK_TRIES = 20
"""Bursts that are measured in addition before a clock counts as wrong."""
HIDDEN_SHARE = 0.5
"""Share of what a candidate saves that it may spend while it makes inputs or sends outputs."""
STEP_NOISE = 0.2
"""Largest share by which such a step differs between two processes that do the same."""
STEP_NOISE_S = 5e-4
"""The same in seconds."""
STEP_QUANTILE = 0.25
"""Of the durations of a step, this one counts: other load makes some of them longer."""
STEP_TRIES = 9
"""Bursts that are measured again before a step counts as too slow."""
CHECKED_CALLS = 16
"""Calls of the last burst of a process whose outputs are compared, chosen at random."""
TYPICAL_ELEMENT_BYTES = 4
"""Bytes of an element, by which the number of input elements is estimated: single precision."""
CANDIDATE = "candidate"
REFERENCE = "reference"
REFERENCE_REPEATED = DEFAULT_REPEATED
_PICKLE_ADVICE = ("the function", "name it FILE.py:NAME")


class CandidateRejected(Exception):
    """The candidate is rejected on a problem, for a reason; the message has both."""

    def __init__(self, reason: str, problem: Problem) -> None:
        super().__init__(f"{reason}, on {problem}")
        self.reason = reason


def judge(
    candidate: Code,
    reference: Code,
    problems: Sequence[Mapping[str, Any]],
    *,
    inputs: Code,
    rivals: Mapping[str, Code] | None = None,
    tolerance: float | None = None,
    session_s: float = 0.5,
    limit_s: float = 30.0,
    device: Device | None = None,
    check_only: bool = False,
    explain: bool = False,
    special_values: bool = True,
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
        tolerance: maximum relative error, see `foretune.relative_error`. By default, it depends on
            the type of number: 1e-9 in double, 1e-5 in single precision; whole numbers are exact.
        session_s: seconds of rounds in each process, per problem.
        limit_s: maximum seconds of one call, including loading and compiling.
        device: the device whose load is observed; by default the CPU.
        check_only: compare outputs and time nothing.
        explain: also count the work of the reference.
        special_values: also check zeros, negated, large and tiny values, values far from 0,
            infinity and NaN, where the reference accepts them.
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
    finite_only = bool(getattr(reference, "finite_inputs_only", False))
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
                bench.check_state(problem)
                if special_values:
                    bench.check_special_values(problem, finite_only=finite_only)
                progress.advance(str(problem))
            if check_only:
                return Verdict("")
            progress.start("comparing", len(wanted))
            verdicts = []
            watched = device or Device("CPU", "cpu")
            for problem in wanted:
                ruling = bench.compare(problem, session_s, LoadMonitor(watched))
                work = bench.work(problem) if explain else None
                verdicts.append(replace(ruling, work=work))
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
    """Runs each contestant in its own process, and times it by this process's clock.

    Raises CandidateRejected if the candidate fails or is wrong, MeasurementError if another does.
    """

    def __init__(
        self,
        implementations: Mapping[str, WorkerProcess],
        tolerance: float | None,
        limit_s: float,
    ) -> None:
        self.implementations = implementations
        self.tolerance = tolerance
        self.limit_s = limit_s
        self.max_error = 0.0
        self._random = random.Random(secrets.randbits(64))
        self._input_bytes = 1  # of one call, as the reference's process says
        self._bursts: dict[str, list[_Burst]] = {}
        self._send_s: dict[str, list[float]] = {}

    def close(self) -> None:
        """End all processes."""
        for service in self.implementations.values():
            service.close()

    def load(self, problem: Problem) -> None:
        """Load all contestants, each in its process; UsageError if a name has no function."""
        for name in self.implementations:
            (seed,) = self._new_seeds(1)
            with self._turn(name):
                unknown = self._call(name, problem, "load", dict(problem), seed)
            if unknown:
                raise UsageError(str(unknown))

    def check(self, problem: Problem) -> None:
        """Check all outputs; UsageError if the reference's output is the same for all inputs."""
        correct = []
        for number in range(CHECK_SEEDS):
            # Two calls at last: the second must not write into the output of the first.
            seeds = self._new_seeds(2 if number == CHECK_SEEDS - 1 else 1)
            for name in self.implementations:
                self._run(name, problem, seeds)
            correct += [self._compare_outputs(problem, call) for call in range(len(seeds))]
        if equal_outputs(correct[0], correct[1]):
            raise UsageError(
                f"the reference gives the same for all inputs of {problem}, so nothing can be "
                "checked: let inputs() use its seed, or choose another problem"
            )

    def check_state(self, problem: Problem) -> None:
        """Reject a candidate whose calls leave another state than the reference's, such as means.

        Buffers may have other names. Those that only the candidate changes are its own affair;
        parameters are not.
        """
        seeds = self._new_seeds(2)
        expected = self._state(REFERENCE, problem, seeds)
        changed = self._state(CANDIDATE, problem, seeds)
        for name in changed:
            if name.startswith(PARAMETER) and name not in expected:
                reason = f"a call changes {name}, which the reference does not change"
                raise CandidateRejected(reason, problem)
        for name, values in expected.items():
            # Whole numbers count calls, and no output depends on them.
            if values.dtype.kind not in "fc":
                continue
            if not any(self._equal_state(values, other) for other in changed.values()):
                reason = f"a call does not change {name} as the reference does"
                raise CandidateRejected(reason, problem)

    def _state(self, name: str, problem: Problem, seeds: list[int]) -> dict[str, np.ndarray]:
        with self._turn(name):
            state: dict[str, Any] = self._call(name, problem, "changed_state", dict(problem), seeds)
        return {part: v for part, v in (state or {}).items() if isinstance(v, np.ndarray)}

    def _equal_state(self, expected: np.ndarray, got: np.ndarray) -> bool:
        if got.shape != expected.shape or got.dtype != expected.dtype:
            return False
        try:
            output_error(got, expected, self._rules())
        except WrongResult:
            return False
        return True

    def check_special_values(self, problem: Problem, *, finite_only: bool = False) -> None:
        """Check outputs on inputs with zeros, large values, NaN and others.

        Only those count that the reference accepts: it does not fail, finite values give no new
        infinities or NaN, and others few of them.
        """
        self._run(REFERENCE, problem, self._new_seeds(1))
        usual: CallOutputs = self._call(REFERENCE, problem, "outputs", 0)
        for special in SPECIAL_VALUES:
            if finite_only and not special.finite:
                continue
            seeds = self._new_seeds(1)
            try:
                self._run(REFERENCE, problem, seeds, special.name)
                expected: CallOutputs = self._call(REFERENCE, problem, "outputs", 0)
            except MeasurementError:  # the reference does not accept them
                continue
            if not accepts_special_values(special, expected, usual):
                continue
            shift = rounding_shift(special, expected, usual)
            for name in self.implementations:
                if name != REFERENCE:
                    self._check_special(name, problem, seeds, special, expected, shift=shift)

    def _check_special(
        self,
        name: str,
        problem: Problem,
        seeds: list[int],
        special: SpecialValues,
        expected: CallOutputs,
        *,
        shift: float,
    ) -> None:
        """Reject the candidate if it computes something else on special values; excuse rivals.

        A rival, such as another library, may give other NaN or refuse them.
        """
        try:
            self._run(name, problem, seeds, special.name)
            with self._turn(name):
                output = self._call(name, problem, "outputs", 0)
            with self._attribute_errors(name, problem):
                self._compare_with(expected, output, shift=shift)
        except CandidateRejected as e:
            reason = f"on inputs with {special.name}: {e.reason}"
            raise CandidateRejected(reason, problem) from e
        except MeasurementError:
            return

    def work(self, problem: Problem) -> Work:
        """Return what the reference has to do for a problem."""
        self._run(REFERENCE, problem, self._new_seeds(1))
        work: Work = self._call(REFERENCE, problem, "work")
        return work

    def compare(self, problem: Problem, session_s: float, watch: LoadMonitor) -> ProblemVerdict:
        """Compare the candidate with the rivals in fresh processes, until the winner is clear."""
        self.max_error = 0.0
        evidence = Evidence(REFERENCE, REFERENCE_REPEATED)
        rivals = [n for n in self.implementations if n not in (CANDIDATE, REFERENCE_REPEATED)]
        calls = self._calls_per_burst(problem)
        self._bursts = {name: [] for name in self.implementations}
        self._send_s = {name: [] for name in self.implementations}
        with watch:
            for processes, share in LOOKS.items():
                # Measure until the next look at the data; the looks share the error.
                while len(evidence) < processes:
                    evidence.add(self._session(problem, session_s, calls))
                against = [
                    evidence.compare(rival, CANDIDATE, rival, None, ERROR * share)
                    for rival in rivals
                ]

                # The fastest rival decides.
                against.sort(key=lambda comparison: comparison.ratio)
                if against[0].verdict != "inconclusive":
                    break
        self._check_clock(problem, calls)
        self._check_other_steps(problem, calls)
        return ProblemVerdict(
            problem=problem,
            against=tuple(against),
            time_ms={name: evidence.value(name) for name in (CANDIDATE, *rivals)},
            processes=len(evidence),
            rounds=evidence.rounds,
            noise=evidence.noise(watch.load),
            relative_error=self.max_error,
            process_ratios={rival: evidence.process_ratios(rival, CANDIDATE) for rival in rivals},
        )

    def _calls_per_burst(self, problem: Problem) -> int:
        """Return how many calls take the reference `BURST_S`; each gets inputs of its own."""
        # The first call of a process may compile for this problem, which takes longer than a burst.
        self._run(REFERENCE, problem, self._new_seeds(1))
        outputs: CallOutputs = self._call(REFERENCE, problem, "outputs", 0)
        output_bytes = sum(part.values.nbytes for part in parts_of(outputs))
        call_bytes = max(1, self._input_bytes, output_bytes)
        largest = min(MAX_BURST, max(1, MAX_BURST_BYTES // call_bytes))
        asking_s = self._asking_s(problem)

        calls = 1
        while calls < largest:
            burst_s = self._run(REFERENCE, problem, self._new_seeds(calls)).judge_s - asking_s
            if burst_s >= BURST_S:
                break
            calls = min(2 * calls, largest)

        # A much slower candidate is seen in fewer calls.
        self._run(CANDIDATE, problem, self._new_seeds(1))
        candidate_s = self._run(CANDIDATE, problem, self._new_seeds(1)).judge_s
        return max(1, min(calls, int(MAX_CANDIDATE_BURST_S / candidate_s)))

    def _asking_s(self, problem: Problem) -> float:
        """Return the seconds that a question to a process takes whose code is trusted."""
        samples = []
        for _ in range(OVERHEAD_SAMPLES):
            start = time.perf_counter()
            self._call(REFERENCE, problem, "idle")
            samples.append(time.perf_counter() - start)
        return min(samples)

    def _session(self, problem: Problem, session_s: float, calls: int) -> Rounds:
        """Time all contestants in interleaved rounds of fresh processes, each with new inputs."""
        self.close()  # the next call to a process starts a new one
        names = list(self.implementations)
        times: dict[str, list[float]] = {name: [] for name in names}
        for name in names:  # loads and warms up
            self._run(name, problem, self._new_seeds(1))
        asking_s = self._asking_s(problem)
        deadline = time.monotonic() + session_s
        for number in range(MAX_ROUNDS):
            if number >= MIN_ROUNDS and time.monotonic() > deadline:
                break
            seeds = self._new_seeds(calls)
            for name in self._random.sample(names, len(names)):
                burst = self._run(name, problem, seeds)
                self._bursts[name].append(burst)
                # Asking may have been faster than in all samples; a time is positive.
                call_s = max(burst.judge_s - asking_s, burst.judge_s * 1e-3)
                times[name].append(1e3 * call_s / calls)
            if self._random.random() < OUTPUT_CHECK_SHARE:
                self._compare_outputs(problem, self._random.randrange(calls))
        self._compare_all_outputs(problem, calls)
        return Rounds({name: np.array(ms) for name, ms in times.items()})

    def _run(self, name: str, problem: Problem, seeds: list[int], special: str = "") -> "_Burst":
        """Let a contestant make its inputs, and time its calls by this process's clock."""
        with self._turn(name):
            prepare_start = time.perf_counter()
            input_bytes = self._call(name, problem, "prepare", dict(problem), seeds, special)
            start = time.perf_counter()
            timed = self._call(name, problem, "run")
            end = time.perf_counter()

        # The default tolerance grows with the size of the inputs. A candidate could claim any.
        if name == REFERENCE:
            self._input_bytes = int(input_bytes)
        if timed.calls != len(seeds):
            raise MeasurementError(f"{name} made {timed.calls} calls instead of {len(seeds)}")
        return _Burst(
            judge_s=end - start, own_s=1e-3 * float(timed.own_ms), prepare_s=start - prepare_start
        )

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        """Let a contestant work. The candidate is stopped, with all its threads, at other times.

        So it can neither compute between its calls, nor slow the others down.
        """
        if name != CANDIDATE:
            yield
            return
        candidate = self.implementations[CANDIDATE]
        candidate.resume()
        try:
            yield
        finally:
            candidate.pause()

    def _compare_outputs(self, problem: Problem, number: int) -> CallOutputs:
        """Compare the outputs of one of the last calls; return the correct ones."""
        expected: CallOutputs = self._call(REFERENCE, problem, "outputs", number)
        for name in self.implementations:
            if name != REFERENCE:
                with self._turn(name):
                    output = self._call(name, problem, "outputs", number)
                self._compare_output(name, problem, expected, output)
        return expected

    def _compare_all_outputs(self, problem: Problem, calls: int) -> None:
        """Let all contestants send all outputs of the last burst; compare some, chosen at random.

        The time that this takes shows whether the candidate computes while it sends them.
        """
        outputs: dict[str, list[CallOutputs]] = {}
        for name in self.implementations:
            with self._turn(name):
                start = time.perf_counter()
                outputs[name] = self._call(name, problem, "all_outputs")
                self._send_s[name].append(time.perf_counter() - start)
            if not isinstance(outputs[name], list) or len(outputs[name]) != calls:
                with self._attribute_errors(name, problem):
                    raise MeasurementError("it does not send one output per call")
        for number in self._random.sample(range(calls), min(calls, CHECKED_CALLS)):
            for name in self.implementations:
                if name != REFERENCE:
                    expected = outputs[REFERENCE][number]
                    self._compare_output(name, problem, expected, outputs[name][number])

    def _compare_output(
        self, name: str, problem: Problem, expected: CallOutputs, output: CallOutputs
    ) -> None:
        with self._attribute_errors(name, problem):
            error = self._compare_with(expected, output)
        if name == CANDIDATE:
            self.max_error = max(self.max_error, error)

    def _compare_with(
        self, expected: CallOutputs, output: CallOutputs, *, shift: float = 1.0
    ) -> float:
        """Return the largest relative error of an output, else raise OtherOutput."""
        return output_difference(output, expected, self._rules(shift))

    def _rules(self, shift: float = 1.0) -> ComparisonRules:
        return ComparisonRules(
            self.tolerance,
            input_elements=max(1, self._input_bytes // TYPICAL_ELEMENT_BYTES),
            shift=shift,
            exact_types=False,
        )

    def _check_clock(self, problem: Problem, calls: int) -> None:
        """Reject a candidate whose process measures with a clock that is off.

        No figure rests on that clock. But a wrong one shows that the candidate manipulates its
        process. What the judge's clock sees in addition is the time to ask, as for the reference.
        Other load only adds to it, so the smallest value counts, and more are measured before a
        candidate is rejected.
        """
        for _ in range(CLOCK_TRIES):
            if not self._clock_is_off():
                return
            seeds = self._new_seeds(calls)
            for name in (REFERENCE, CANDIDATE):
                self._bursts[name].append(self._run(name, problem, seeds))
        if self._clock_is_off():
            own_s, judge_s = self._median_times()
            clocks = (
                f"its process says {1e3 * own_s:.3g} ms, the judge's clock {1e3 * judge_s:.3g} ms"
            )
            raise CandidateRejected(clocks, problem)

    def _clock_is_off(self) -> bool:
        """Whether the candidate's clock misses more of the judge's time than the reference's."""
        missed_s = {
            name: np.array([burst.judge_s - burst.own_s for burst in self._bursts[name]])
            for name in (CANDIDATE, REFERENCE)
        }
        fastest_s = {name: float(np.min(missed)) for name, missed in missed_s.items()}
        # Other load delays answers. How much is seen in those of the reference.
        delay_s = float(np.quantile(missed_s[REFERENCE], 0.1)) - fastest_s[REFERENCE]
        allowed_s = CLOCK_NOISE * max(self._median_times()) + 1e-3 * CLOCK_NOISE_MS + delay_s
        return abs(fastest_s[CANDIDATE] - fastest_s[REFERENCE]) > allowed_s

    def _check_other_steps(self, problem: Problem, calls: int) -> None:
        """Reject a candidate that computes while it makes its inputs, or sends its outputs.

        Both take as long as for the reference, because they are not the candidate's code. Other
        load adds time, so more is measured before a candidate is rejected.
        """
        reason = self._slow_step()
        if not reason:
            return
        self._bursts = {name: [] for name in self.implementations}
        self._send_s = {name: [] for name in self.implementations}
        for _ in range(STEP_TRIES):
            seeds = self._new_seeds(calls)
            for name in self.implementations:
                self._bursts[name].append(self._run(name, problem, seeds))
            self._compare_all_outputs(problem, calls)
        reason = self._slow_step()
        if reason:
            raise CandidateRejected(reason, problem)

    def _slow_step(self) -> str:
        """Return in which step the candidate spends what it saves; empty if in none."""
        run_s = self._usual_s(
            {n: [b.judge_s for b in bursts] for n, bursts in self._bursts.items()}
        )
        prepare_s = {n: [b.prepare_s for b in bursts] for n, bursts in self._bursts.items()}
        saved_s = run_s[REFERENCE] - run_s[CANDIDATE]
        if saved_s <= 0:
            return ""
        steps = {"makes its inputs": prepare_s, "sends its outputs": self._send_s}
        for step, samples in steps.items():
            usual_s = self._usual_s(samples)

            # The reference runs in two processes, which show how much equal steps differ.
            references = (usual_s[REFERENCE], usual_s[REFERENCE_REPEATED])
            difference = abs(references[0] - references[1])
            noise_s = STEP_NOISE * max(references) + 3 * difference + STEP_NOISE_S
            extra_s = usual_s[CANDIDATE] - max(references)
            if extra_s > max(HIDDEN_SHARE * saved_s, noise_s):
                return (
                    f"it saves {1e3 * saved_s:.3g} ms in its calls, and spends {1e3 * extra_s:.3g} "
                    f"ms more than the reference while it {step}"
                )
        return ""

    def _usual_s(self, samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Return how long a step of each contestant takes without much other load."""
        return {name: float(np.quantile(s, STEP_QUANTILE)) for name, s in samples.items()}

    def _median_times(self) -> tuple[float, float]:
        """Return the seconds of the candidate's bursts by its own and by the judge's clock."""
        bursts = self._bursts[CANDIDATE]
        own_s = float(np.median([burst.own_s for burst in bursts]))
        judge_s = float(np.median([burst.judge_s for burst in bursts]))
        return own_s, judge_s

    def _call(self, name: str, problem: Problem, method: str, *arguments: Any) -> Any:
        with self._attribute_errors(name, problem):
            return self.implementations[name].call(method, *arguments, limit_s=self.limit_s)

    @contextmanager
    def _attribute_errors(self, name: str, problem: Problem) -> Any:
        """Return a context that rejects the candidate for its errors; other errors are raised."""
        try:
            yield
        except (OtherOutput, TimeoutError, ChildProcessError, ForetuneError) as e:
            is_late = isinstance(e, TimeoutError)
            reason = f"did not end within {self.limit_s:g} s" if is_late else str(e)
            if name == CANDIDATE:
                raise CandidateRejected(reason, problem) from e
            raise MeasurementError(f"{name} cannot be compared on {problem}: {reason}") from e

    def _new_seeds(self, n: int) -> list[int]:
        return [self._random.getrandbits(32) for _ in range(n)]


@dataclass(frozen=True)
class _Burst:
    """Seconds of some calls by the judge's clock, and by the clock of their process.

    ``prepare_s`` is how long their inputs took to make, by the judge's clock.
    """

    judge_s: float
    own_s: float
    prepare_s: float
