"""A policy, trained over many problems, proposes configurations of unseen ones at once.

It learns from predictions: the reward of a task is log(reference / objective). As a searcher, it
takes policy-gradient steps on all measurements after each new one; advantages are standardized log
objectives. Samples of the initial policy stay likely, so that few measurements do not erase it.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from foretune.device import Device
from foretune.kernel import Kernel
from foretune.models import Predictor
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.search.policies.agent import (
    Agent,
    TrainingSchedule,
    one_torch_thread,
    reinforce,
    standardized,
)
from foretune.search.policies.decisions import ConfigurationDecisions, Context, Task, Vocabulary
from foretune.search.prior import prior_from_predictor
from foretune.search.searcher import Prior, Searcher
from foretune.space import Configuration, SearchSpace
from foretune.support.lazy import require

require("torch", "rl", "a policy")
import torch  # noqa: E402

BEAM_WIDTH = 256  # width of the beam search for the likeliest configurations
FULL_TRAINING = TrainingSchedule()


@dataclass(frozen=True, eq=False)
class Policy:
    """Probabilities of configurations, given a problem's sizes and a device's specs.

    It can choose the values of its ``vocabulary``; ``context`` encodes problems and devices.
    """

    vocabulary: Vocabulary
    context: Context
    agent: Agent

    @classmethod
    def train(
        cls, tasks: Sequence[Task], schedule: TrainingSchedule = FULL_TRAINING, seed: int = 0
    ) -> Self:
        """Train on the rewards of ``tasks``, usually predicted ones (`predicted_tasks`).

        Raises UsageError if there is no task, or tasks have different parameters.
        """
        decisions = ConfigurationDecisions(tasks)
        agent = Agent(decisions, seed)
        reinforce(agent, decisions, schedule, seed)
        return cls(decisions.vocabulary, decisions.context, agent)

    def decisions(self, task: Task) -> ConfigurationDecisions:
        """Return ``task`` in this policy's encoding.

        Raises UsageError if its space has other parameters, or no configuration with known values.
        """
        return ConfigurationDecisions([task], self.vocabulary, self.context)

    def propose(self, task: Task, n: int = 10) -> list[tuple[Configuration, float]]:
        """Return up to ``n`` configurations and their probabilities, likeliest first.

        Nothing is predicted or measured. Raises UsageError: see `decisions`.
        """
        decisions = self.decisions(task)
        chosen, log_p = self.agent.beam_search(decisions, 0, max(n, BEAM_WIDTH))
        numbers = decisions.indices_of(0, chosen[:n])
        probabilities = np.exp(log_p[:n]).tolist()
        return [(task.space[int(i)], p) for i, p in zip(numbers, probabilities, strict=True)]


SMALL_SPACE = 20_000
"""Minimum number of configurations predicted per call, because calls have a high fixed cost."""
REFERENCE_SAMPLE = 512
"""Number of random configurations whose median is the reference of a predicted task."""
MIN_P_VALID = 1e-3  # lower bound of the probability to run


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
        for other in (task.space for task in tasks):  # a table of a million rows is kept once
            if other.parameters == space.parameters and np.array_equal(other.codes, space.codes):
                space = other
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
    known = np.full(len(space), np.nan)

    def predict(numbers: np.ndarray) -> np.ndarray:
        if len(space) <= SMALL_SPACE:
            numbers = np.arange(len(space))
        new = np.unique(numbers[np.isnan(known[numbers])])
        if len(new):
            prior = prior_from_predictor(predictor, problem, space, device, objective, new)
            known[new] = _expected(prior)
        return known

    some = np.random.default_rng(0).permutation(len(space))[:REFERENCE_SAMPLE]
    reference = float(np.median(predict(some)[some]))
    return Task(space, problem, device, lambda numbers: reference - predict(numbers)[numbers])


def prior_task(
    space: SearchSpace, prior: Prior, problem: Problem, device: Device | None = None
) -> Task:
    """Return a task with rewards from a prior: log(median / expected objective)."""
    expected = _expected(prior)
    reference = float(np.median(expected))
    return Task(space, problem, device, lambda numbers: reference - expected[numbers])


def _expected(prior: Prior) -> np.ndarray:
    """Return the log of the expected cost of one success, if failures cost as much as runs."""
    return prior.log_mean - np.log(np.maximum(prior.p_valid, MIN_P_VALID))


SHORT_TRAINING = TrainingSchedule(updates=100, episodes=128, rate=1e-2)
"""Training of a policy for a single space on its prior."""
UPDATES_PER_TELL = 5  # updates per measurement
LEARNING_RATE = 1e-3  # Adam's learning rate in these updates
ANCHOR_DRAWS = 64  # samples of the initial policy; together they weigh as much as all measurements
FAILURE_PENALTY = float(np.log(2.0))  # log slowdown of a failure, relative to the slowest success


class PolicySearcher(Searcher):
    """Proposes the configurations that a policy finds likeliest.

    Without a given policy, it trains one on the prior of this space; without a prior, it starts
    from uniform probabilities. A given policy was already trained on predictions; a prior then gets
    its own guide. ``args`` and ``named``: as for `Searcher`; ``policy``: trained on other problems
    of the same kernel. Raises UsageError if the policy's parameters differ from the space's;
    MissingExtra if torch is not installed.
    """

    def __init__(self, *args: Any, policy: Policy | None = None, **named: Any) -> None:
        self._policy = policy
        self.uses_prior = policy is None
        super().__init__(*args, **named)

    def _prepare(self) -> None:
        self._is_trained = self._policy is not None or self.prior is not None
        task, schedule = Task(self.space, self.problem, self.device), TrainingSchedule(updates=0)
        if self.prior is not None:
            task = prior_task(self.space, self.prior, self.problem, self.device)
            schedule = SHORT_TRAINING
        policy = self._policy or Policy.train([task], schedule=schedule, seed=self.seed)
        self._decisions = policy.decisions(task)
        self._agent = copy.deepcopy(policy.agent)
        self._adam = torch.optim.Adam(self._agent.network.parameters(), lr=LEARNING_RATE)
        self._anchors = self._draw(ANCHOR_DRAWS)

    def _propose(self, n: int) -> list[int]:
        numbers = dict.fromkeys(i for i in self._candidates(n) if i not in self.proposed)
        chosen = list(numbers)[:n]
        others = (i for i in self.random_indices(n) if i not in numbers)
        return chosen + [i for i, _ in zip(others, range(n - len(chosen)), strict=False)]

    def _candidates(self, n: int) -> list[int]:
        """Return the policy's preferred configurations in order; samples if it is untrained."""
        if not self._is_trained:
            return self._decisions.indices_of(0, self._draw(n + BEAM_WIDTH)).tolist()
        width = n + len(self.proposed) + BEAM_WIDTH
        likeliest, _ = self._agent.beam_search(self._decisions, 0, width)
        return self._decisions.indices_of(0, likeliest).tolist()

    def _learn(self, new_values: dict[int, float]) -> None:
        encode = self._decisions.vocabulary.encode
        known = [(encode(self.space[i]), value) for i, value in self.observed.items()]
        codes = [c for c, _ in known if c is not None]
        values = np.log([value for c, value in known if c is not None])
        finite = np.isfinite(values)
        if finite.sum() == 0 or len(values) < 2:
            return
        values[~finite] = values[finite].max() + FAILURE_PENALTY
        anchors = np.full(ANCHOR_DRAWS, 1.0 / ANCHOR_DRAWS)
        weights = np.append(-standardized(values) / len(values), anchors)
        self._improve(np.vstack([codes, self._anchors]), weights.astype(np.float32))

    def _improve(self, chosen: np.ndarray, weights: np.ndarray) -> None:
        """Make episodes likelier in proportion to their weights."""
        tasks, by = np.zeros(len(chosen), dtype=np.int64), torch.from_numpy(weights)
        with one_torch_thread():
            for _ in range(UPDATES_PER_TELL):
                loss = -(by * self._agent.log_likelihood(self._decisions, tasks, chosen)).sum()
                self._adam.zero_grad()
                torch.autograd.backward(loss)
                self._adam.step()

    def _draw(self, n: int) -> np.ndarray:
        with torch.no_grad(), one_torch_thread():
            return self._agent.sample_episodes(
                self._decisions, np.zeros(n, dtype=np.int64), self.rng
            )[0]
