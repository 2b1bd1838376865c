"""Verification: a fresh, interleaved comparison of the finalists with the default and the library.

A candidate chosen because it measured fast is partly lucky, and the machine drifts while a search
runs. So the finalists run again, in turn, and what counts is the ratio within each round. The
default runs twice in each: how far it is from itself says how far others may be by chance.
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from foretune.collect.conditions import Conditions
from foretune.collect.timer import median_interval
from foretune.collect.workbench import AGAIN
from foretune.errors import MeasurementError
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.results import Contender, Steadiness
from foretune.tune.session import Session

LEAST_ROUNDS = 6
"""Fewer have no 95 % interval."""
METERED_ROUNDS = 9
"""With an objective that needs power every run fills a meter's window: few rounds, long ones."""


def verify(
    session: Session, problem: Problem, candidates: Sequence[Configuration], box_s: float = 2.0
) -> tuple[list[Contender], int, Steadiness]:
    """Compare ``candidates`` with the default (and the library, by time), interleaved.

    Args:
        session: its first objective is compared.
        problem: what is computed.
        candidates: the finalists.
        box_s: seconds of comparison by time.

    Returns:
        The default first, then the candidates in the given order, then the library call; the number
        of rounds; and how steady the machine was.

    Raises:
        MeasurementError: the default no longer runs, or gives wrong results.
    """
    default = session.kernel.default(problem)
    names = {default.id: "default"}
    configs = {default.id: default}
    for candidate in candidates:
        names.setdefault(candidate.id, f"candidate {len(names)}")
        configs.setdefault(candidate.id, candidate)
    with session.runner.watch() as watch:
        values = _survivors(session, problem, list(configs.values()), box_s)
    base, again = values.get(default.id), values.pop(AGAIN, None)
    if base is None or not np.isfinite(base).any():
        raise MeasurementError(
            f"the default configuration of {session.kernel.name} does not run, gives wrong results "
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
    return contenders, len(base), steadiness(base, again, watch.conditions)


def steadiness(base: np.ndarray, again: np.ndarray | None, conditions: Conditions) -> Steadiness:
    """Return how steady a machine was.

    Args:
        base: the default's values by round.
        again: the same of the default's second run in each round; None without one.
        conditions: what the machine did meanwhile.
    """
    low = high = drift = np.nan
    if again is not None and len(base) >= LEAST_ROUNDS:
        low, high = median_interval(base / again)
    halves = np.array_split(base[np.isfinite(base)], 2)
    if len(halves[0]) >= LEAST_ROUNDS // 2 <= len(halves[1]):
        medians = sorted(float(np.median(half)) for half in halves)
        drift = medians[1] / medians[0]
    return Steadiness(low, high, drift, conditions.disturbed, conditions.others, conditions.stolen)


def _survivors(
    session: Session, problem: Problem, configs: list[Configuration], box_s: float
) -> dict[str, np.ndarray]:
    """Return the values by round of those that still run; the default comes first."""
    try:
        return _rounds(session, problem, configs, box_s)
    except MeasurementError:
        if len(configs) == 1:
            raise
    default, *candidates = configs
    alive = []
    for candidate in candidates:
        with suppress(MeasurementError):
            _rounds(session, problem, [default, candidate], 0.0)
            alive.append(candidate)
    return _rounds(session, problem, [default, *alive], box_s)


def _rounds(
    session: Session, problem: Problem, configs: list[Configuration], box_s: float
) -> dict[str, np.ndarray]:
    objective = session.objectives[0]
    if not objective.needs_power:
        return session.runner.race(session.kernel, problem, configs, box_s)
    runs = measured_rounds(session, problem, configs, METERED_ROUNDS)
    return {c.id: np.array([objective.measured(m) for m in runs[c]]) for c in configs}


def measured_rounds(
    session: Session, problem: Problem, configs: Sequence[Configuration], rounds: int
) -> dict[Configuration, list[Measurement]]:
    """Return ``rounds`` fresh runs of each configuration, in a new random order each round."""
    runs: dict[Configuration, list[Measurement]] = {c: [] for c in configs}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        turn = [configs[i] for i in rng.permutation(len(configs))]
        for config, m in zip(turn, session.runner.run(session.kernel, problem, turn), strict=True):
            runs[config].append(m)
    return runs


def compare(
    name: str,
    config: Configuration | None,
    base: np.ndarray,
    values: np.ndarray,
    confidence: float,
) -> Contender:
    """Compare with the default by the ratios within rounds.

    Rounds without a figure say nothing; whatever failed in any round does not count.

    Args:
        name: what it is called.
        config: None for a library call.
        base: the default's values by round.
        values: its own.
        confidence: of the interval, between 0 and 1.
    """
    both = np.isfinite(base) & np.isfinite(values)
    if both.sum() < LEAST_ROUNDS or np.isposinf(values).any():
        return Contender(name, config, np.inf, np.nan, np.nan, np.nan)
    ratios = base[both] / values[both]
    low, high = median_interval(ratios, confidence)
    return Contender(
        name, config, float(np.median(values[both])), float(np.median(ratios)), low, high
    )
