"""Policy search: a policy proposes and keeps learning from measurements.

The policy was trained on predictions. After each measurement it takes policy-gradient steps on all
measurements: advantages are standardized log objectives. Samples of the initial policy stay likely,
so that a few measurements do not erase its training.
"""

from typing import Any

import numpy as np

from foretune.lazy import require
from foretune.search.policies.agents import one_torch_thread
from foretune.search.policies.policy import BEAM_WIDTH, Policy
from foretune.search.policies.reinforce import TrainingSchedule, standardized
from foretune.search.policies.tasks import Task, prior_task
from foretune.search.searcher import Searcher

SHORT_TRAINING = TrainingSchedule(updates=100, episodes=128, rate=1e-2)
"""Training of a policy for a single space on its prior."""
UPDATES_PER_TELL = 5
"""Updates per measurement."""
LEARNING_RATE = 1e-3
"""Adam's learning rate in these updates."""
ANCHOR_DRAWS = 64
"""Samples of the initial policy; together they weigh as much as all measurements."""
FAILURE_PENALTY = float(np.log(2.0))
"""Log slowdown of a failure, relative to the slowest success."""


class PolicySearcher(Searcher):
    """Proposes the configurations that a policy finds likeliest.

    Without a given policy, it trains one on the prior of this space; without a prior, it starts
    from uniform probabilities. A given policy was already trained on predictions; a prior then gets
    its own guide.

    Args:
        args, named: as for `Searcher`.
        policy: trained on other problems of the same kernel.

    Raises:
        UsageError: the policy's parameters differ from the space's.
        MissingExtra: torch is not installed.
    """

    def __init__(self, *args: Any, policy: Policy | None = None, **named: Any) -> None:
        self._policy = policy
        self.uses_prior = policy is None
        super().__init__(*args, **named)

    def _prepare(self) -> None:
        torch = require("torch", "rl", "policy search")
        self._is_trained = self._policy is not None or self.prior is not None
        policy = self._policy or self._train_policy()
        self._decisions = policy.decisions(Task(self.space, self.problem, self.device))
        self._agents = policy.agents.copy()
        self._adam = torch.optim.Adam(self._agents.networks.parameters(), lr=LEARNING_RATE)
        self._anchors = self._draw(ANCHOR_DRAWS)

    def _train_policy(self) -> Policy:
        """Return a policy for this space, trained on its prior if there is one."""
        if self.prior is None:
            schedule, task = (
                TrainingSchedule(updates=0),
                Task(self.space, self.problem, self.device),
            )
        else:
            task = prior_task(self.space, self.prior, self.problem, self.device)
            schedule = SHORT_TRAINING
        return Policy.train([task], schedule=schedule, seed=self.seed)

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
        likeliest, _ = self._agents.beam_search(self._decisions, 0, width)
        return self._decisions.indices_of(0, likeliest).tolist()

    def _learn(self, new_values: dict[int, float]) -> None:
        known = [(self._encode(i), value) for i, value in self.observed.items()]
        codes = [c for c, _ in known if c is not None]
        values = np.log([value for c, value in known if c is not None])
        finite = np.isfinite(values)
        if finite.sum() == 0 or len(values) < 2:
            return
        values[~finite] = values[finite].max() + FAILURE_PENALTY
        weights = np.append(
            -standardized(values) / len(values), np.full(ANCHOR_DRAWS, 1.0 / ANCHOR_DRAWS)
        )
        self._improve(np.vstack([codes, self._anchors]), weights.astype(np.float32))

    def _improve(self, chosen: np.ndarray, weights: np.ndarray) -> None:
        """Make episodes likelier in proportion to their weights."""
        import torch

        tasks, by = np.zeros(len(chosen), dtype=np.int64), torch.from_numpy(weights)
        with one_torch_thread():
            for _ in range(UPDATES_PER_TELL):
                loss = -(by * self._agents.log_likelihood(self._decisions, tasks, chosen)).sum()
                self._adam.zero_grad()
                torch.autograd.backward(loss)
                self._adam.step()

    def _draw(self, n: int) -> np.ndarray:
        import torch

        with torch.no_grad(), one_torch_thread():
            return self._agents.sample_episodes(
                self._decisions, np.zeros(n, dtype=np.int64), self.rng
            )[0]

    def _encode(self, number: int) -> list[int] | None:
        return self._decisions.vocabulary.encode(self.space[number])
