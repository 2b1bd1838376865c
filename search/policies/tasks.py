"""Tasks of policies: a problem to configure, and its reward, log(reference / objective)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from foretune.device import Device
from foretune.kernel import Kernel
from foretune.models import Predictor
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.search.prior import prior_from_predictor
from foretune.search.searcher import Prior
from foretune.space import SearchSpace

SMALL_SPACE = 20_000
"""Minimum number of configurations predicted per call, because calls have a high fixed cost."""
REFERENCE_SAMPLE = 512
"""Number of random configurations whose median is the reference of a predicted task."""
MIN_P_VALID = 1e-3
"""Lower bound of the probability to run."""

Reward = Callable[[np.ndarray], np.ndarray]
"""Maps configuration numbers to log(reference / objective); -inf for failures."""


@dataclass(frozen=True, eq=False)
class Task:
    """One problem to configure on one device.

    ``space`` has the legal configurations; ``reward`` maps their numbers to rewards, and is None if
    only proposals are needed.
    """

    space: SearchSpace
    problem: Problem = field(default_factory=Problem)
    device: Device | None = None
    reward: Reward | None = None


def predicted_tasks(
    predictor: Predictor,
    kernel: Kernel,
    problems: Iterable[Problem],
    device: Device,
    objective: Objective = Objective.TIME,
) -> list[Task]:
    """Return one task per problem, with predicted rewards.

    Raises PredictorError if the predictor has not learned a target that ``objective`` needs.
    """
    tasks: list[Task] = []
    for problem in problems:
        space = kernel.space(problem)
        for task in tasks:  # a table of a million rows is kept once
            if _are_equal(task.space, space):
                space = task.space
        tasks.append(predicted_task(predictor, problem, space, device, objective))
    return tasks


def predicted_task(
    predictor: Predictor,
    problem: Problem,
    space: SearchSpace,
    device: Device,
    objective: Objective = Objective.TIME,
) -> Task:
    """Return a task with the reward log(reference / predicted objective), predicted on demand.

    The reference is the median of random configurations. The objective is divided by the
    probability to run. Raises PredictorError if a target of ``objective`` is not learned.
    """
    log_objective = np.full(len(space), np.nan)  # NaN: not predicted yet

    def predict(numbers: np.ndarray) -> np.ndarray:
        """Return the log objective of these configurations."""
        wanted = np.arange(len(space)) if len(space) <= SMALL_SPACE else numbers
        new = np.unique(wanted[np.isnan(log_objective[wanted])])
        if len(new):
            prior = prior_from_predictor(
                predictor, problem, space, device=device, objective=objective, indices=new
            )
            log_objective[new] = _log_expected_cost(prior)
        return log_objective[numbers]

    sample = np.random.default_rng(0).permutation(len(space))[:REFERENCE_SAMPLE]
    reference = float(np.median(predict(sample)))
    return Task(space, problem, device, lambda numbers: reference - predict(numbers))


def prior_task(
    space: SearchSpace, prior: Prior, problem: Problem, device: Device | None = None
) -> Task:
    """Return a task with rewards from a prior: log(median / expected objective)."""
    log_objective = _log_expected_cost(prior)
    reference = float(np.median(log_objective))
    return Task(space, problem, device, lambda numbers: reference - log_objective[numbers])


def _log_expected_cost(prior: Prior) -> np.ndarray:
    """Return the log of the expected cost of one success, if failures cost as much as runs."""
    return prior.log_mean - np.log(np.maximum(prior.p_valid, MIN_P_VALID))


def _are_equal(a: SearchSpace, b: SearchSpace) -> bool:
    return a.parameters == b.parameters and np.array_equal(a.codes, b.codes)
