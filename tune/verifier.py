"""The verifier: finalists against the default in several fresh processes.

A search's fastest measurement is biased (winner's curse), the machine drifts, and a process may
favor one launch by its memory layout. So every process builds the default twice and each candidate
once, and times them in interleaved rounds with new inputs. A process gives one log ratio per
candidate, of low quantiles, because other load only adds time. The interval is Student's over
processes. Interim looks at the data, and several candidates, share the error (Bonferroni).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.special import stdtrit

from foretune.collect.comparison import DEFAULT_REPEATED, Rounds
from foretune.collect.machine_load import MachineLoad
from foretune.errors import MeasurementError
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.job import TuningJob
from foretune.tune.results import Comparison, NoiseEstimate

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
ratio of the two defaults: 1.5 launches' variances over 2."""

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

    def __len__(self) -> int:
        return len(self._processes)  # one session each

    def add(self, rounds: Rounds) -> None:
        """Add the rounds of one process; NaN is a round without a value."""
        self.failures.update(rounds.failures)
        self.rounds += max(map(len, rounds.time_ms.values()), default=0)
        values = {}
        for key, times in rounds.time_ms.items():
            known = times[~np.isnan(times)]
            if not (np.isfinite(known) & (known > 0)).all():
                self.failures.setdefault(key, "it failed in a round")
            elif len(known):
                values[key] = float(np.quantile(known, QUANTILE))
        self._processes.append(values)

    def value(self, key: str) -> float:
        """Return the median over processes; infinite without a value."""
        values = [process[key] for process in self._processes if key in process]
        return float(np.median(values)) if values and key not in self.failures else np.inf

    def compare(
        self, base: str, key: str, name: str, config: Configuration | None, error: float
    ) -> Comparison:
        """Compare a contender with ``base``; ``error`` is that of each end of the interval."""
        bases = self._repeated if base in self._repeated else (base,)
        logs = np.array(
            [
                np.mean([np.log(process[b]) for b in bases if b in process]) - np.log(process[key])
                for process in self._processes
                if base in process and key in process
            ]
        )
        if key in self.failures or len(logs) < 2:
            why = self.failures.get(key, "measured in too few processes")
            return Comparison(name, config, self.value(key), np.nan, np.nan, np.nan, why)
        # A few processes may agree by chance: the variance is at least that of two equals.
        noise = self._noise()
        variance = max(logs.var(ddof=1), NOISE_SHARE * np.mean(noise**2) if len(noise) else 0.0)
        ratios = _interval(logs.mean(), variance, len(logs), error)
        return Comparison(name, config, self.value(key), *ratios)

    def noise(self, load: MachineLoad) -> NoiseEstimate:
        """Return the ratio of the two equal contenders, and the machine's load."""
        logs, ends = self._noise(), (np.nan, np.nan)
        if len(logs) > 1:
            ends = _interval(logs.mean(), logs.var(ddof=1), len(logs), 0.025)[1:]
        return NoiseEstimate(*ends, load.disturbance, load.other_load, load.steal)

    def libraries(self) -> list[str]:
        """Return the keys of library calls."""
        return sorted({k for p in self._processes for k in p if k.startswith("library:")})

    def _noise(self) -> np.ndarray:
        one, other = self._repeated
        both = [p for p in self._processes if one in p and other in p]
        return np.array([np.log(p[one] / p[other]) for p in both])


def _interval(mean: float, variance: float, n: int, error: float) -> tuple[float, float, float]:
    """Return a ratio and the bounds of its Student interval, from its logarithm's mean."""
    half = stdtrit(n - 1, 1 - error) * np.sqrt(variance / n)
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))


def gather(
    session: Session,
    base: str,
    candidates: Mapping[str, Configuration],
    seed: int,
    looks: Mapping[int, float] = LOOKS,
) -> tuple[Evidence, list[Comparison]]:
    """Run sessions until the best candidate wins or none can win; compare all candidates.

    Those that surely have no relevant gain are left out later. MeasurementError: the default fails.
    """
    rng = np.random.default_rng(seed)
    evidence = Evidence(base, DEFAULT_REPEATED)
    active, found = list(candidates), dict[str, Comparison]()
    for processes, share in looks.items():
        while len(evidence) < processes:
            evidence.add(session(active, int(rng.integers(2**31))))
            if reason := evidence.failures.get(base, evidence.failures.get(DEFAULT_REPEATED)):
                raise MeasurementError(reason)
        error = ERROR * share / max(1, len(candidates))
        for i, (key, config) in enumerate(candidates.items(), 1):
            if key in active:
                found[key] = evidence.compare(base, key, f"candidate {i}", config, error)
        active = [key for key in active if found[key].verdict != "no_win"]
        if not active or max((found[k] for k in active), key=lambda c: c.ratio).wins:
            break
    return evidence, [found[key] for key in candidates]


def verify(
    job: TuningJob, problem: Problem, candidates: Sequence[Configuration], session_s: float = 0.5
) -> tuple[list[Comparison], Evidence, NoiseEstimate]:
    """Compare ``candidates`` with the default, and the library, by the job's first objective.

    ``session_s`` are seconds of rounds in each process. Returns the comparisons (the default, the
    candidates in order, the library call), their evidence, and the noise. Raises MeasurementError
    if the default no longer runs, or gives wrong results.
    """
    default, metered = job.kernel.default(problem), job.objectives[0].needs_power
    configs = {c.id: c for c in candidates if c != default}
    looks = (METERED_LOOKS if metered else LOOKS) if configs else {1: 1.0}

    def session(keys: Sequence[str], seed: int) -> Rounds:
        contenders = [default, *(configs[key] for key in keys if key in configs)]
        if metered:
            runs = measure_once(job, problem, contenders, seed)
            value_of = job.objectives[0].value_of
            rounds = Rounds({key: np.array([value_of(m)]) for key, m in runs.items()})
        else:
            rounds = _working_rounds(job, problem, contenders, session_s, seed)
        job.progress.advance()
        return rounds

    job.progress.start("verifying", max(looks))
    with job.runner.watch() as watch:
        try:
            evidence, compared = gather(session, default.id, configs, job.seed, looks)
            if not np.isfinite(value := evidence.value(default.id)):
                raise MeasurementError("it was not measured")
        except MeasurementError as e:
            raise MeasurementError(
                f"the default configuration of {job.kernel.name} does not run, gives wrong "
                f"results or is not metered on {problem}: {e}"
            ) from e
    for _ in range(max(looks) - len(evidence)):  # it is clear before the last look
        job.progress.advance()
    libraries = [
        evidence.compare(default.id, key, key.removeprefix("library:"), None, ERROR)
        for key in evidence.libraries()
    ]
    baseline = Comparison("default", default, value, 1.0, 1.0, 1.0)
    return [baseline, *compared, *libraries], evidence, evidence.noise(watch.load)


def _working_rounds(
    job: TuningJob, problem: Problem, configs: Sequence[Configuration], session_s: float, seed: int
) -> Rounds:
    """Return one process's rounds, without the configurations that end the process."""
    compare = job.runner.compare_interleaved
    try:
        return compare(job.kernel, problem, configs, session_s, seed)
    except MeasurementError:
        if len(configs) == 1:
            raise
    failures = {}
    for candidate in configs[1:]:
        try:
            compare(job.kernel, problem, [configs[0], candidate], 0.0, seed)
        except MeasurementError as e:
            failures[candidate.id] = str(e)
    working = [config for config in configs if config.id not in failures]
    rounds = compare(job.kernel, problem, working, session_s, seed)
    return Rounds(rounds.time_ms, {**rounds.failures, **failures})


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
    return {keys[i]: m for i, m in zip(order, runs, strict=True)}
