"""Tasks: problems to configure, with a reward for each configuration.

The reward is log(reference / objective), from a predictor in training and from hardware in
verification.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from foretune.collect.runner import Runner
from foretune.device import Device
from foretune.errors import MeasurementError
from foretune.kernel import Kernel
from foretune.models.predictor import Predictor
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.search.prior import prior_from_predictor
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.searcher import Prior
from foretune.space import Configuration, SearchSpace

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

    Attributes:
        space: the legal configurations.
        problem: the problem.
        device: the device; None if unknown.
        reward: rewards by configuration number; None if only proposals are needed.
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

    Raises:
        PredictorError: the predictor has not learned a target that ``objective`` needs.
    """
    tasks: list[Task] = []
    for problem in problems:
        space = kernel.space(problem)
        same = (t.space for t in tasks if _is_same_space(t.space, space))
        space = next(same, space)  # a table of a million rows is kept once
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
    probability to run.

    Raises:
        PredictorError: the predictor has not learned a target that ``objective`` needs.
    """
    known = np.full(len(space), np.nan)

    def predict(numbers: np.ndarray) -> np.ndarray:
        if len(space) <= SMALL_SPACE:
            numbers = np.arange(len(space))
        new = np.unique(numbers[np.isnan(known[numbers])])
        if len(new):
            known[new] = _expected(
                prior_from_predictor(predictor, problem, space, device, objective, new)
            )
        return known

    some = np.random.default_rng(0).permutation(len(space))[:REFERENCE_SAMPLE]
    reference = float(np.median(predict(some)[some]))
    return Task(space, problem, device, lambda numbers: reference - predict(numbers)[numbers])


def prior_task(
    space: SearchSpace, prior: Prior, problem: Problem, device: Device | None = None
) -> Task:
    """Return a task with rewards from a prior: log(median / expected objective)."""
    return _task_of_values(space, _expected(prior), problem, device)


def recorded_task(recorded: RecordedSpace) -> Task:
    """Return a task with rewards from a recorded space: log(median / objective)."""
    return _task_of_values(
        recorded.space, np.log(recorded.values), recorded.problem, recorded.device
    )


def measured_task(
    kernel: Kernel, problem: Problem, runner: Runner, objective: Objective = Objective.TIME
) -> Task:
    """Return a task with measured rewards: log(default's objective / objective).

    The default is measured at once, the others when they are first chosen.

    Raises:
        MeasurementError: the default has no value.
    """
    space, default = kernel.space(problem), kernel.default(problem)
    known: dict[int, float] = {}

    def measure(configs: Iterable[Configuration]) -> None:
        for m in runner.run(kernel, problem, list(configs)):
            known[space.index(m.config)] = float(np.log(objective.value_of(m)))

    measure([default])
    reference = known[space.index(default)]
    if not np.isfinite(reference):
        raise MeasurementError(
            f"the default of {problem} gives no {objective.value}: there is nothing to compare with"
        )

    def reward(numbers: np.ndarray) -> np.ndarray:
        measure(space[i] for i in dict.fromkeys(numbers.tolist()) if i not in known)
        return reference - np.array([known[i] for i in numbers.tolist()])

    return Task(space, problem, runner.device, reward)


def _task_of_values(
    space: SearchSpace, log_values: np.ndarray, problem: Problem, device: Device | None
) -> Task:
    reference = float(np.median(log_values[np.isfinite(log_values)]))
    return Task(space, problem, device, lambda numbers: reference - log_values[numbers])


def _expected(prior: Prior) -> np.ndarray:
    """Return the log of the expected cost of one success, if failures cost as much as runs."""
    return prior.log_mean - np.log(np.maximum(prior.p_valid, MIN_P_VALID))


def _is_same_space(one: SearchSpace, other: SearchSpace) -> bool:
    return one.parameters == other.parameters and np.array_equal(one.codes, other.codes)
