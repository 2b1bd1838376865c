"""The verifier: finalists against the default in several fresh processes.

A search's fastest measurement is biased (winner's curse), the machine drifts, and a process may
favor one launch by its memory layout. So every process builds the default twice and each candidate
once, and times them in interleaved rounds with new inputs. A process gives one log ratio per
candidate, of low quantiles, because other load only adds time. The interval is Student's over
processes. Interim looks at the data, and several candidates, share the error (Bonferroni).

A verification has a budget of seconds. If it is too small for all candidates, the least promising
ones are left out; when it is spent, the interval is that of the processes so far.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from foretune.collect.comparison import DEFAULT_REPEATED, MAX_ROUNDS_S, MIN_ROUNDS, Rounds
from foretune.collect.machine_load import MachineLoad
from foretune.collect.wrapped.wrapped import WrappedKernel
from foretune.errors import MeasurementError
from foretune.measurement import Measurement
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.ratio_interval import ratio_interval
from foretune.tune.job import TuningJob
from foretune.tune.results import WORTH_HAVING, Comparison, NoiseEstimate
from foretune.tune.separate_check import Contest, check_separately

ERROR = 0.005
"""One-sided error of a verification: the probability that an equal contender seems to win."""
LOOKS = {5: 0.5, 8: 0.3, 12: 0.2}
"""Numbers of processes after which the data is evaluated, and their shares of `ERROR`."""
METERED_LOOKS = {9: 1.0}
"""The same for objectives that need power; each process runs everything once."""
QUANTILE = 0.1
"""Quantile of a process's rounds; it differs less between equal launches than the median."""
NOISE_SHARE = 0.75
"""Variance of a candidate's ratio to the mean of two defaults, relative to the variance of the
ratio of the two defaults: 1.5 launches' variances over 2. To a single base, it is as large."""
SEPARATE_NOISE = 0.02
"""Least deviation of the log ratio of contenders in processes of their own, in few rounds."""
NOISE_ERROR = 0.025
"""One-sided error of the interval of the noise, which is a 95 % interval."""
BUILD_LAUNCHES = 2
"""Times that a process runs each contender before it times rounds."""
MAX_THREADS_CHANGE = 0.25
"""Largest difference of two contenders' shares of CPU time in other threads that counts as equal
use of the machine; a second thread changes it by half."""
MAX_CORES_CHANGE = 0.25
"""The same for the number of cores that they keep busy; chosen by hand."""
MIN_PROCESSES = 3
"""Processes of any verification, whatever its budget: an interval from two says nothing."""
FIRST_LOOK_SHARE = 2.0
"""Largest time until the first look at the data, relative to the budget: Student's interval from
five processes is less than half as wide as that from three."""
MIN_VERIFY_S = 5.0
"""Least seconds of a verification, by default; a search that takes longer is verified as long."""
MAX_SESSION_S = 0.5
"""Maximum seconds of rounds in each process: more processes tell more than more rounds."""
MAX_ROUNDS_SHARE = 0.5
"""Maximum share of the budget for rounds; building and checking take the rest."""
LIBRARY_PREFIX = "library:"
"""Begins the key of a library's call."""

Session = Callable[[Sequence[str], int], Rounds]
"""Times the default and the candidates with these keys in a fresh process, with a seed."""


class Evidence:
    """The results of a comparison's processes, of which there are ``len()``.

    ``repeated`` are the keys of two equal contenders, whose ratio shows the noise. `rounds` counts
    the rounds in all processes; `failures` says why contenders failed, by key.
    """

    def __init__(self, *repeated: str) -> None:
        self._repeated = repeated
        self._processes: list[dict[str, float]] = []
        self.rounds = 0
        self.failures: dict[str, str] = {}
        self._checked_on: dict[str, None] = {}
        self._separate: list[dict[str, float]] = []
        self._uses: dict[str, list[MachineUse]] = {}

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def checked_on(self) -> str:
        """The inputs on which outputs were compared, in words; empty if unknown."""
        usual, *special = self._checked_on or [""]
        return f"{usual}; also {', '.join(sorted(special))}" if special else usual

    def add(self, rounds: Rounds) -> None:
        """Add the rounds of one process; NaN is a round without a value."""
        self.failures.update(rounds.failures)
        self._checked_on |= dict.fromkeys(rounds.checked_on)
        self.rounds += max(map(len, rounds.time_ms.values()), default=0)
        self._separate.append(
            {
                key: float(np.nanquantile(times, QUANTILE))
                for key, times in rounds.separate_ms.items()
                if np.isfinite(times).any()
            }
        )
        for key, cores in rounds.cores.items():
            use = MachineUse(cores=cores, other_threads=rounds.other_threads.get(key, math.nan))
            self._uses.setdefault(key, []).append(use)
        quantiles = {}
        for key, times in rounds.time_ms.items():
            known = times[~np.isnan(times)]
            valid = np.isfinite(known) & (known > 0)
            if not valid.all():
                self.failures.setdefault(key, "it failed in a round")
            elif len(known):
                quantiles[key] = float(np.quantile(known, QUANTILE))
        self._processes.append(quantiles)

    def value(self, key: str) -> float:
        """Return the median over processes; infinite without a value."""
        values = [process[key] for process in self._processes if key in process]
        if not values or key in self.failures:
            return np.inf
        return float(np.median(values))

    def compare(
        self, base: str, key: str, name: str, config: Configuration | None, error: float
    ) -> Comparison:
        """Compare a contender with ``base``; ``error`` is that of each end of the interval."""
        value = self.value(key)
        log_ratios = self._log_ratios(base, key, self._processes)
        if key in self.failures or len(log_ratios) < 2:
            reason = self.failures.get(key, "measured in too few processes")
            return Comparison(
                name,
                config,
                value,
                ratio=np.nan,
                ratio_low=np.nan,
                ratio_high=np.nan,
                failure=reason,
            )

        if self._needs_default(base, key, log_ratios):
            reason = "it is faster only if the default runs in the same process"
            return Comparison(
                name,
                config,
                value,
                ratio=np.nan,
                ratio_low=np.nan,
                ratio_high=np.nan,
                failure=reason,
            )

        interval = ratio_interval(
            log_ratios.mean(),
            variance=self._variance(base, log_ratios),
            n=len(log_ratios),
            error=error,
        )
        return Comparison(
            name,
            config,
            value,
            ratio=interval.ratio,
            ratio_low=interval.low,
            ratio_high=interval.high,
        )

    def process_ratios(self, base: str, key: str) -> tuple[float, ...]:
        """Return the ratio of ``base`` to a contender in each process that has both."""
        return tuple(np.exp(self._log_ratios(base, key, self._processes)).tolist())

    def expects_win(self, base: str, key: str, processes: int, error: float) -> bool:
        """Whether a contender wins if more processes, up to this number, are like those so far."""
        log_ratios = self._log_ratios(base, key, self._processes)
        if len(log_ratios) < 2 or key in self.failures:
            return False
        interval = ratio_interval(
            log_ratios.mean(), variance=self._variance(base, log_ratios), n=processes, error=error
        )
        return interval.low > 1.0 + WORTH_HAVING

    def is_less_exposed(self, base: str, key: str) -> str:
        """Return in words that a contender needs less of the CPU at a time; empty if it does not.

        Other load slows it less than ``base``.
        """
        default, contender = self._use(base), self._use(key)
        fewer_threads = default.other_threads - contender.other_threads > MAX_THREADS_CHANGE
        fewer_cores = default.cores - contender.cores > MAX_CORES_CHANGE
        if not (fewer_threads or fewer_cores):
            return ""
        return f"it keeps {contender.text} busy, and the default {default.text}"

    def _use(self, key: str) -> "MachineUse":
        """Return the median over processes."""
        uses = self._uses.get(key)
        if not uses:
            return MachineUse(cores=math.nan, other_threads=math.nan)
        return MachineUse(
            cores=float(np.median([use.cores for use in uses])),
            other_threads=float(np.median([use.other_threads for use in uses])),
        )

    def noise(self, load: MachineLoad) -> NoiseEstimate:
        """Return the ratio of the two equal contenders, and the machine's load."""
        noise = self._noise(self._processes)
        low, high = np.nan, np.nan
        if len(noise) > 1:
            interval = ratio_interval(
                noise.mean(), variance=noise.var(ddof=1), n=len(noise), error=NOISE_ERROR
            )
            low, high = interval.low, interval.high
        return NoiseEstimate(
            again_low=low,
            again_high=high,
            disturbed=load.disturbance,
            others=load.other_load,
            stolen=load.steal,
        )

    def libraries(self) -> list[str]:
        """Return the keys of library calls."""
        keys = {key for process in self._processes for key in process}
        return sorted(key for key in keys if key.startswith(LIBRARY_PREFIX))

    def _needs_default(self, base: str, key: str, log_ratios: np.ndarray) -> bool:
        """Whether a gain surely disappears if each contender has a process of its own."""
        separate = self._log_ratios(base, key, self._separate)
        gain = float(log_ratios.mean())
        if len(separate) < 2 or gain < np.log1p(WORTH_HAVING):
            return False
        # A few processes may agree by chance: two equals in processes of their own show the noise.
        noise = self._noise(self._separate)
        least = NOISE_SHARE * float(np.mean(noise**2)) if len(noise) else 0.0
        interval = ratio_interval(
            separate.mean(),
            variance=max(separate.var(ddof=1), least, SEPARATE_NOISE**2),
            n=len(separate),
            error=NOISE_ERROR,
        )
        return bool(np.log(interval.high) < gain / 2)

    def _log_ratios(
        self, base: str, key: str, processes: Sequence[Mapping[str, float]]
    ) -> np.ndarray:
        """Return log(base / contender) of each process that has both.

        The repeated contenders are equal, so their mean is a better base than either.
        """
        bases = self._repeated if base in self._repeated else (base,)
        ratios = []
        for process in processes:
            if base in process and key in process:
                log_base = np.mean([np.log(process[b]) for b in bases if b in process])
                ratios.append(log_base - np.log(process[key]))
        return np.array(ratios)

    def _variance(self, base: str, log_ratios: np.ndarray) -> float:
        """Return the variance over processes.

        A few processes may agree by chance: it is at least that of two equals.
        """
        noise = self._noise(self._processes)
        if len(noise) == 0:
            return float(log_ratios.var(ddof=1))
        share = NOISE_SHARE if base in self._repeated else 1.0
        return float(max(log_ratios.var(ddof=1), share * np.mean(noise**2)))

    def _noise(self, processes: Sequence[Mapping[str, float]]) -> np.ndarray:
        """Return the log ratio of the two equals in each process that has both."""
        one, other = self._repeated
        both = [process for process in processes if one in process and other in process]
        return np.array([np.log(process[one] / process[other]) for process in both])


@dataclass(frozen=True)
class MachineUse:
    """How a contender uses the CPU; NaN if unknown.

    Attributes:
        cores: CPU seconds that it takes in a second.
        other_threads: share of its CPU seconds in other threads than the calling one.
    """

    cores: float
    other_threads: float

    @property
    def text(self) -> str:
        """Both in words."""
        return f"{self.cores:.1f} cores ({self.other_threads:.0%} of it in other threads)"


class _Pace:
    """How long processes take, and how many more the budget allows.

    A process runs the default twice, and each candidate once.
    """

    def __init__(self, seconds: float, launch_s: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._start = clock()
        self._clock = clock
        self._launch_s = launch_s
        """Longest seconds of a process per launch; they include its start."""

    def record(self, started_at: float, candidates: int) -> None:
        """Note how long a process took with this number of candidates."""
        took = self._clock() - started_at
        self._launch_s = max(self._launch_s, took / (2 + candidates))

    def affordable_processes(self, candidates: int, budget_share: float = 1.0) -> float:
        """Return how many more processes with this number of candidates the budget allows.

        ``budget_share`` multiplies the budget.
        """
        left_s = self._start + budget_share * self._seconds - self._clock()
        process_s = self._launch_s * (2 + candidates)
        return math.inf if process_s == 0.0 else left_s / process_s


def gather(
    session: Session,
    base: str,
    candidates: Mapping[str, Configuration],
    seed: int,
    looks: Mapping[int, float] = LOOKS,
    *,
    seconds: float = math.inf,
    launch_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Evidence, list[Comparison]]:
    """Run sessions until the best candidate wins or none can win; compare all candidates.

    Those that surely have no relevant gain are left out later. No session starts that is expected
    to end after ``seconds``, with three exceptions: the first `MIN_PROCESSES`, those up to the
    first look if they take at most `FIRST_LOOK_SHARE` times as long, and those up to the next look
    if a candidate is expected to win there. ``launch_s`` is how long one launch is expected to
    keep a process busy. MeasurementError: the default fails.
    """
    rng = np.random.default_rng(seed)
    evidence = Evidence(base, DEFAULT_REPEATED)
    pace = _Pace(seconds, launch_s, clock)
    active = list(candidates)
    comparisons: dict[str, Comparison] = {}
    error_share = 0.0
    for processes, share in looks.items():
        error_share += share

        # Measure until the next look at the data.
        while len(evidence) < processes:
            active = _affordable(active, evidence, base, pace, wanted=processes - len(evidence))
            error = ERROR * share / max(1, len(candidates))
            if _is_spent(pace, active, evidence, base, next_look=processes, error=error):
                break
            started_at = clock()
            evidence.add(session(active, int(rng.integers(2**31))))
            pace.record(started_at, len(active))
            # One that failed never wins: it would cost time in each process.
            active = _without_failed(active, evidence, base)
            if candidates and not active and len(evidence) >= MIN_PROCESSES:
                break

        # The looks and the candidates share the error. The last look gets all that is left of it.
        is_out_of_time = len(evidence) < processes
        used_share = 1.0 - (error_share - share) if is_out_of_time else share
        error = ERROR * used_share / max(1, len(candidates))
        for number, (key, config) in enumerate(candidates.items(), start=1):
            if key in active or key not in comparisons or key in evidence.failures:
                name = f"candidate {number}"
                comparisons[key] = evidence.compare(base, key, name, config, error)
        if is_out_of_time:
            break

        # Stop once the best candidate wins, or none can win.
        active = [key for key in active if comparisons[key].verdict in ("win", "inconclusive")]
        if not active:
            break
        leader = max((comparisons[key] for key in active), key=lambda c: c.ratio)
        if leader.wins:
            break
    return evidence, [comparisons[key] for key in candidates]


def _without_failed(active: Sequence[str], evidence: Evidence, base: str) -> list[str]:
    """Return the candidates that have not failed; raise MeasurementError if the default has."""
    reason = evidence.failures.get(base, evidence.failures.get(DEFAULT_REPEATED))
    if reason:
        raise MeasurementError(reason)
    return [key for key in active if key not in evidence.failures]


def _is_spent(
    pace: _Pace,
    active: Sequence[str],
    evidence: Evidence,
    base: str,
    *,
    next_look: int,
    error: float,
) -> bool:
    """Whether the budget is spent, and nothing is expected of the next look, with its error."""
    if len(evidence) < MIN_PROCESSES or pace.affordable_processes(len(active)) >= 1.0:
        return False
    if next_look == min(LOOKS):
        until_look = next_look - len(evidence)
        if pace.affordable_processes(len(active), FIRST_LOOK_SHARE) >= until_look:
            return False
    # Other load may have spent it: the few processes that will decide are run in spite of that.
    return not any(evidence.expects_win(base, key, next_look, error) for key in active)


def _affordable(
    active: list[str], evidence: Evidence, base: str, pace: _Pace, *, wanted: int
) -> list[str]:
    """Return the most promising candidates, as many as the budget allows to measure.

    ``wanted`` is the number of processes until the next look at the data.
    """
    by_value = sorted(active, key=evidence.value)
    while len(by_value) > 1 and pace.affordable_processes(len(by_value)) < wanted:
        by_value.pop()
    return [key for key in active if key in by_value]


@dataclass(frozen=True)
class VerificationOutcome:
    """What `verify` found.

    Attributes:
        contenders: the default, the candidates in order, the library call.
        evidence: the processes in which they were measured.
        noise: the default's ratio to itself, and other load on the machine.
        limitation: why the winner's outputs were not compared in this process, too; empty if they
            were, or nothing wins.
    """

    contenders: list[Comparison]
    evidence: Evidence
    noise: NoiseEstimate
    limitation: str = ""

    @property
    def checked_on(self) -> str:
        """The inputs on which outputs were compared, and where, in words."""
        if not self.limitation:
            return self.evidence.checked_on
        return (
            f"{self.evidence.checked_on}; compared in the process that runs the winner only, "
            f"because {self.limitation}"
        )


def verify(
    job: TuningJob,
    problem: Problem,
    candidates: Sequence[Configuration],
    seconds: float = math.inf,
    *,
    default_breaks_limits: bool = False,
) -> VerificationOutcome:
    """Compare ``candidates`` with the default, and the library, by the job's first objective.

    No process starts that is expected to end after ``seconds``. If the default breaks limits, the
    best candidate is the winner, faster or not. Raises MeasurementError if the default no longer
    runs, or gives wrong results.
    """
    default = job.kernel.default(problem)
    metered = job.objectives[0].needs_power
    configs = {c.id: c for c in candidates if c != default}
    looks = METERED_LOOKS if metered else LOOKS
    if not configs:
        looks = {1: 1.0}  # only the default's time is wanted
    session_s = min(MAX_SESSION_S, MAX_ROUNDS_SHARE * seconds / max(looks))

    def session(keys: Sequence[str], seed: int) -> Rounds:
        contenders = [default, *(configs[key] for key in keys if key in configs)]
        if metered:
            rounds = _metered_rounds(job, problem, contenders, seed)
        else:
            rounds = _working_rounds(job, problem, contenders, session_s=session_s, seed=seed)
        job.progress.advance()
        return rounds

    job.progress.start("verifying", max(looks))
    with job.runner.watch() as watch:
        try:
            evidence, compared = gather(
                session,
                default.id,
                configs,
                job.seed,
                looks,
                seconds=seconds,
                launch_s=_expected_launch_s(job, problem),
            )
            default_value = evidence.value(default.id)
            if not np.isfinite(default_value):
                raise MeasurementError("it was not measured")
        except MeasurementError as e:
            raise MeasurementError(
                f"the default configuration of {job.kernel.name} does not run, gives wrong "
                f"results or is not metered on {problem}: {e}"
            ) from e

    # It may be clear before the last look.
    for _ in range(max(looks) - len(evidence)):
        job.progress.advance()

    compared = [while_busy(comparison, evidence, default.id, watch.load) for comparison in compared]
    checked = _checked_separately(
        job, problem, compared, watch.load, any_wins=default_breaks_limits
    )
    baseline = Comparison(
        "default", default, default_value, ratio=1.0, ratio_low=1.0, ratio_high=1.0
    )
    libraries = [
        evidence.compare(default.id, key, key.removeprefix(LIBRARY_PREFIX), None, ERROR)
        for key in evidence.libraries()
    ]
    outcome = VerificationOutcome(
        contenders=[baseline, *checked.comparisons, *libraries],
        evidence=evidence,
        noise=evidence.noise(watch.load),
        limitation=checked.limitation,
    )
    return _without_refused(job, problem, outcome, checked, seconds)


def _without_refused(
    job: TuningJob,
    problem: Problem,
    outcome: VerificationOutcome,
    checked: "_Checked",
    seconds: float,
) -> VerificationOutcome:
    """Compare again without refused winners, because the comparison ended with their win."""
    open_ones = [c for c in checked.comparisons if c.verdict == "inconclusive"]
    if not checked.refused or not open_ones or any(c.wins for c in checked.comparisons):
        return outcome
    again = verify(job, problem, [c.config for c in open_ones if c.config is not None], seconds)
    names = {c.config: c.name for c in open_ones}
    repeated = {
        c.config: replace(c, name=names[c.config]) for c in again.contenders if c.config in names
    }
    contenders = [repeated.get(c.config, c) for c in outcome.contenders[1:] if c.config is not None]
    libraries = [c for c in again.contenders if c.config is None]
    return replace(again, contenders=[again.contenders[0], *contenders, *libraries])


@dataclass(frozen=True)
class _Checked:
    """Comparisons whose best winner was checked outside its process.

    Attributes:
        comparisons: winners that did not pass are failures.
        refused: whether there are such.
        limitation: why the best winner's outputs could not be compared; empty if they could.
    """

    comparisons: list[Comparison]
    refused: bool = False
    limitation: str = ""


def _checked_separately(
    job: TuningJob,
    problem: Problem,
    compared: Sequence[Comparison],
    load: MachineLoad,
    *,
    any_wins: bool,
) -> _Checked:
    """Check the best winner outside its process; if it does not pass, the next one.

    A gain that is not seen there is none, unless other load may have hidden it: then a quiet
    machine decides. With ``any_wins``, any candidate with a ratio may be the winner.
    """
    checked = list(compared)
    refused = False
    kernel = job.kernel
    if not isinstance(kernel, WrappedKernel) or not kernel.runs_where_compared:
        return _Checked(checked)
    is_timed_here = job.objectives[0] is Objective.TIME and not kernel.reports_own_time
    while winners := [c for c in checked if c.wins or (any_wins and np.isfinite(c.ratio))]:
        best = max(winners, key=lambda comparison: comparison.ratio)
        assert best.config is not None
        contest = Contest(
            kernel=kernel,
            problem=problem,
            default=kernel.default(problem),
            candidate=best.config,
            gain=best.ratio if is_timed_here and kernel.device_kind == "cpu" else None,
        )
        verdict = check_separately(job.runner, contest)
        if verdict.unseen and load.disturbance:
            checked[checked.index(best)] = replace(best, while_busy=verdict.unseen)
            return _Checked(checked, refused=refused, limitation=verdict.limitation)
        failure = verdict.refused or verdict.unseen
        if not failure:
            return _Checked(checked, refused=refused, limitation=verdict.limitation)
        refused = True
        checked[checked.index(best)] = replace(
            best, ratio=np.nan, ratio_low=np.nan, ratio_high=np.nan, failure=failure
        )
    return _Checked(checked, refused=refused)


def while_busy(
    comparison: Comparison, evidence: Evidence, base: str, load: MachineLoad
) -> Comparison:
    """Return a comparison that does not count as a win if other load may have made it one.

    Other load slows a default of two threads more than a candidate of one. Interleaved rounds do
    not remove this: it is a bias, not noise. A candidate that needs more threads than the default
    wins in spite of the load.
    """
    if not comparison.wins or comparison.config is None or not load.disturbance:
        return comparison
    return replace(comparison, while_busy=evidence.is_less_exposed(base, comparison.config.id))


def _expected_launch_s(job: TuningJob, problem: Problem) -> float:
    """Return how long a launch keeps a process busy, from the default's measured time."""
    measured = job.cache.find(problem, job.kernel.default(problem))
    if measured is None or not measured.ok:
        return 0.0
    time_s = measured.time_ms * 1e-3
    rounds_s = min(MIN_ROUNDS * time_s, max(time_s, MAX_ROUNDS_S))
    return BUILD_LAUNCHES * time_s + rounds_s


def _metered_rounds(
    job: TuningJob, problem: Problem, configs: Sequence[Configuration], seed: int
) -> Rounds:
    """Return one process's only round, by an objective that needs power."""
    value_of = job.objectives[0].value_of
    runs = measure_once(job, problem, configs, seed)
    return Rounds({key: np.array([value_of(run)]) for key, run in runs.items()})


def _working_rounds(
    job: TuningJob,
    problem: Problem,
    configs: Sequence[Configuration],
    *,
    session_s: float,
    seed: int,
) -> Rounds:
    """Return one process's rounds, without the configurations that end the process."""
    compare = job.runner.compare_interleaved
    try:
        return compare(job.kernel, problem, configs, session_s, seed)
    except MeasurementError:
        if len(configs) == 1:
            # Something outside may have ended the process: one more try.
            return compare(job.kernel, problem, configs, session_s, seed)

    # One of them ends the process: find it beside the default alone, without rounds.
    failures = {}
    for candidate in configs[1:]:
        try:
            compare(job.kernel, problem, [configs[0], candidate], 0.0, seed)
        except MeasurementError as e:
            failures[candidate.id] = str(e)
    working = [config for config in configs if config.id not in failures]
    rounds = compare(job.kernel, problem, working, session_s, seed)
    return replace(rounds, failures={**rounds.failures, **failures})


def measure_once(
    job: TuningJob, problem: Problem, configs: Sequence[Configuration], seed: int
) -> dict[str, Measurement]:
    """Measure each configuration once in a fresh process, in random order, the first one twice.

    The keys are the configurations' ids and `DEFAULT_REPEATED`.
    """
    keys = [*(config.id for config in configs), DEFAULT_REPEATED]
    contenders = [*configs, configs[0]]
    order = np.random.default_rng(seed).permutation(len(keys))

    job.runner.renew()
    runs = job.runner.run(job.kernel, problem, [contenders[i] for i in order])
    return {keys[i]: measurement for i, measurement in zip(order, runs, strict=True)}
