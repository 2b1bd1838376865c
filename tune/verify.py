"""Verification: a fresh, interleaved comparison of the finalists with the default and the library.

A candidate chosen because it measured fast is partly lucky, and the machine drifts while a search
runs. So the finalists run again, in turn (A B C, B C A, …), and what counts is the ratio within
each round.
"""

from collections.abc import Sequence

import numpy as np

from foretune.collect import Runner
from foretune.collect.timer import median_interval
from foretune.kernel import Kernel
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.results import Contender

METERED_ROUNDS = 7
"""With an objective that needs power every run fills a meter's window: few rounds, long ones."""


def verify(
    kernel: Kernel,
    problem: Problem,
    candidates: Sequence[Configuration],
    runner: Runner,
    objective: Objective = Objective.TIME,
    box_s: float = 2.0,
) -> tuple[list[Contender], int]:
    """Compare ``candidates`` with the default (and the library, by time), interleaved.

    Returns:
        The default first, then the candidates in the given order, then the library call; and the
        number of rounds.

    Raises:
        MeasurementError: one of them no longer runs.
    """
    default = kernel.default(problem)
    names = {default.id: "default"}
    configs = {default.id: default}
    for candidate in candidates:
        names.setdefault(candidate.id, f"candidate {len(names)}")
        configs.setdefault(candidate.id, candidate)
    values = _rounds(kernel, problem, list(configs.values()), runner, objective, box_s)
    base = values[default.id]
    contenders = [
        _contender(
            names.get(key, key.removeprefix("library:")), configs.get(key), base, values[key]
        )
        for key in [*configs, *(k for k in values if k not in configs)]
    ]
    return contenders, len(base)


def _rounds(
    kernel: Kernel,
    problem: Problem,
    configs: list[Configuration],
    runner: Runner,
    objective: Objective,
    box_s: float,
) -> dict[str, np.ndarray]:
    if not objective.needs_power:
        return runner.race(kernel, problem, configs, box_s)
    values: dict[str, list[float]] = {c.id: [] for c in configs}
    for i in range(METERED_ROUNDS):
        turn = i % len(configs)
        for m in runner.run(kernel, problem, configs[turn:] + configs[:turn]):
            values[m.config.id].append(objective.measured(m))
    return {key: np.array(v) for key, v in values.items()}


def _contender(
    name: str, config: Configuration | None, base: np.ndarray, values: np.ndarray
) -> Contender:
    ratios = base / values
    low, high = median_interval(ratios)
    return Contender(name, config, float(np.median(values)), float(np.median(ratios)), low, high)
