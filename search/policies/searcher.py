"""A policy as a searcher.

It takes policy-gradient steps on all measurements after each new one; advantages are standardized
log objectives. Samples of the initial policy stay likely, so that few measurements do not erase it.
"""

import copy
import itertools
from typing import Any

import numpy as np

from foretune.search.policies.agent import TrainingSchedule, one_torch_thread, standardized
from foretune.search.policies.policy import BEAM_WIDTH, Policy
from foretune.search.policies.tasks import Task, prior_task
from foretune.search.searcher import Searcher
from foretune.support.lazy import require

require("torch", "rl", "a policy")
import torch  # noqa: E402

SHORT_TRAINING = TrainingSchedule(updates=100, episodes=128, rate=1e-2)
"""Training of a policy for a single space on its prior."""
NO_TRAINING = TrainingSchedule(updates=0)
UPDATES_PER_TELL = 5
"""Updates per measurement."""
LEARNING_RATE = 1e-3
"""Adam's learning rate in these updates."""
ANCHOR_DRAWS = 64
"""Samples of the initial policy; together they weigh as much as all measurements."""
FAILURE_PENALTY = float(np.log(2.0))
"""Log slowdown of a failure, relative to the slowest success."""
MIN_MEASUREMENTS = 2
"""Fewer have no deviation to standardize by."""


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
        if self.prior is None:
            task = Task(self.space, self.problem, self.device)
            schedule = NO_TRAINING
        else:
            task = prior_task(self.space, self.prior, self.problem, self.device)
            schedule = SHORT_TRAINING
        policy = self._policy or Policy.train([task], schedule=schedule, seed=self.seed)
        self._decisions = policy.decisions(task)
        self._agent = copy.deepcopy(policy.agent)
        self._adam = torch.optim.Adam(self._agent.network.parameters(), lr=LEARNING_RATE)
        self._anchors = self._draw(ANCHOR_DRAWS)

    def _propose(self, n: int) -> list[int]:
        preferred = [number for number in self._candidates(n) if number not in self.proposed]
        chosen = list(dict.fromkeys(preferred))[:n]
        # If the policy knows too few values, random configurations fill up.
        others = (number for number in self.random_indices(n) if number not in preferred)
        return [*chosen, *itertools.islice(others, n - len(chosen))]

    def _candidates(self, n: int) -> list[int]:
        """Return the policy's preferred configurations in order; samples if it is untrained."""
        if self._is_trained:
            width = n + len(self.proposed) + BEAM_WIDTH
            episodes, _ = self._agent.beam_search(self._decisions, task=0, width=width)
        else:
            episodes = self._draw(n + BEAM_WIDTH)
        return self._decisions.indices_of(0, episodes).tolist()

    def _learn(self, new_values: dict[int, float]) -> None:
        # All measurements so far, but those with values that the policy does not know.
        measured = []
        values = []
        for number, value in self.observed.items():
            codes = self._decisions.vocabulary.encode(self.space[number])
            if codes is not None:
                measured.append(codes)
                values.append(value)
        log_values = np.log(values)
        ran = np.isfinite(log_values)
        if not ran.any() or len(log_values) < MIN_MEASUREMENTS:
            return
        log_values[~ran] = log_values[ran].max() + FAILURE_PENALTY

        advantages = -standardized(log_values)
        weights = np.concatenate(
            [advantages / len(log_values), np.full(ANCHOR_DRAWS, 1.0 / ANCHOR_DRAWS)]
        )
        self._improve(np.vstack([measured, self._anchors]), weights.astype(np.float32))

    def _improve(self, chosen: np.ndarray, weights: np.ndarray) -> None:
        """Make episodes likelier in proportion to their weights."""
        tasks = np.zeros(len(chosen), dtype=np.int64)
        weight = torch.from_numpy(weights)
        with one_torch_thread():
            for _ in range(UPDATES_PER_TELL):
                log_p = self._agent.log_likelihood(self._decisions, tasks, chosen)
                loss = -(weight * log_p).sum()
                self._adam.zero_grad()
                torch.autograd.backward(loss)
                self._adam.step()

    def _draw(self, n: int) -> np.ndarray:
        """Return the choices of ``n`` random episodes, shape (n, steps)."""
        tasks = np.zeros(n, dtype=np.int64)
        with torch.no_grad(), one_torch_thread():
            episodes, _ = self._agent.sample_episodes(self._decisions, tasks, self.rng)
        return episodes
