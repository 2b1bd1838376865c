"""Verification: interleaved comparison of the finalists with the default and the library.

The fastest measurement is biased (winner's curse), and the machine drifts during a search. So the
finalists run again in interleaved rounds, and only ratios within a round count. The default runs
twice per round: its ratio to itself shows the noise.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from foretune.collect.benchmark import DEFAULT_REPEATED
from foretune.collect.machine_load import MachineLoad
from foretune.collect.timing import median_interval
from foretune.errors import MeasurementError
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.job import TuningJob
from foretune.tune.results import Comparison, NoiseEstimate

MIN_ROUNDS = 6
"""Minimum number of rounds for a 95 % interval."""
METERED_ROUNDS = 9
"""Rounds with a power meter: each run fills the meter's window, so rounds are few and long."""


def verify(
    job: TuningJob, problem: Problem, candidates: Sequence[Configuration], max_seconds: float = 2.0
) -> tuple[list[Comparison], int, NoiseEstimate]:
    """Compare ``candidates`` with the default (and the library, by time) in interleaved rounds.

    Returns:
        the default first, then the candidates in order, then the library call; the number of
            rounds;
        and a noise estimate.

    Raises:
        MeasurementError: the default no longer runs, or gives wrong results.
    """
    default = job.kernel.default(problem)
    names = {default.id: "default"}
    configs = {default.id: default}
    for candidate in candidates:
        names.setdefault(candidate.id, f"candidate {len(names)}")
        configs.setdefault(candidate.id, candidate)
    with job.runner.watch() as watch:
        values = _compare_working(job, problem, list(configs.values()), max_seconds)
    base, repeated = values.get(default.id), values.pop(DEFAULT_REPEATED, None)
    if base is None or not np.isfinite(base).any():
        raise MeasurementError(
            f"the default configuration of {job.kernel.name} does not run, gives wrong results "
            f"or is not metered on {problem}"
        )
    # Each of several candidates may win by luck: the error is shared among them (Bonferroni).
    confidence = 1 - 0.05 / max(1, len(configs) - 1)
    order = [*(key for key in configs if key in values), *(k for k in values if k not in configs)]
    contenders = [
        compare(
            names.get(key, key.removeprefix("library:")),
            configs.get(key),
            base,
            values[key],
            confidence,
        )
        for key in order
    ]
    return contenders, len(base), estimate_noise(base, repeated, watch.load)


def estimate_noise(
    base: np.ndarray, repeated: np.ndarray | None, conditions: MachineLoad
) -> NoiseEstimate:
    """Return the noise estimate of a comparison.

    Args:
        base: the default's values by round.
        repeated: values of the default's second run in each round, if any.
        conditions: load of the machine.
    """
    low = high = drift = np.nan
    if repeated is not None and len(base) >= MIN_ROUNDS:
        low, high = median_interval(base / repeated)
    halves = np.array_split(base[np.isfinite(base)], 2)
    if len(halves[0]) >= MIN_ROUNDS // 2 <= len(halves[1]):
        medians = sorted(float(np.median(half)) for half in halves)
        drift = medians[1] / medians[0]
    return NoiseEstimate(
        low, high, drift, conditions.disturbance, conditions.other_load, conditions.steal
    )


def _compare_working(
    job: TuningJob, problem: Problem, configs: list[Configuration], max_seconds: float
) -> dict[str, np.ndarray]:
    """Return the values by round of the configurations that still run, the default first."""
    try:
        return _values_by_round(job, problem, configs, max_seconds)
    except MeasurementError:
        if len(configs) == 1:
            raise
    default, *candidates = configs
    working = []
    for candidate in candidates:
        with suppress(MeasurementError):
            _values_by_round(job, problem, [default, candidate], 0.0)
            working.append(candidate)
    return _values_by_round(job, problem, [default, *working], max_seconds)


def _values_by_round(
    job: TuningJob, problem: Problem, configs: list[Configuration], max_seconds: float
) -> dict[str, np.ndarray]:
    objective = job.objectives[0]
    if not objective.needs_power:
        return job.runner.compare_interleaved(job.kernel, problem, configs, max_seconds)
    runs = measure_rounds(job, problem, configs, METERED_ROUNDS)
    return {c.id: np.array([objective.value_of(m) for m in runs[c]]) for c in configs}


def measure_rounds(
    job: TuningJob, problem: Problem, configs: Sequence[Configuration], rounds: int
) -> dict[Configuration, list[Measurement]]:
    """Return ``rounds`` new runs of each configuration, in a new random order each round."""
    runs: dict[Configuration, list[Measurement]] = {c: [] for c in configs}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        order = [configs[i] for i in rng.permutation(len(configs))]
        for config, m in zip(order, job.runner.run(job.kernel, problem, order), strict=True):
            runs[config].append(m)
    return runs


def compare(
    name: str,
    config: Configuration | None,
    base: np.ndarray,
    values: np.ndarray,
    confidence: float,
) -> Comparison:
    """Compare with the default by the ratios within rounds.

    Rounds with NaN are ignored. A failure in any round disqualifies.
    """
    both = np.isfinite(base) & np.isfinite(values)
    if both.sum() < MIN_ROUNDS or np.isposinf(values).any():
        return Comparison(name, config, np.inf, np.nan, np.nan, np.nan)
    ratios = base[both] / values[both]
    low, high = median_interval(ratios, confidence)
    return Comparison(
        name, config, float(np.median(values[both])), float(np.median(ratios)), low, high
    )
