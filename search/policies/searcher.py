"""Policy search: a policy proposes, and learns on from what is measured.

What the policy learned beforehand was predicted; what it learns here is measured. After every
answer it takes some policy-gradient steps on all that was told: a configuration becomes likelier by
how many standard deviations its log objective is below the mean. Draws from the policy as it was at
first are kept likely, or it would forget all it knew for a handful of measurements.
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
"""For a policy of one space, whose prior is all there is to learn."""
UPDATES_PER_TELL = 5
"""Updates after every answer."""
LEARNING_RATE = 1e-3
"""Adam's learning rate in them."""
ANCHOR_DRAWS = 64
"""Draws from the first policy, which weigh together as much as all measurements."""
FAILURE_PENALTY = float(np.log(2.0))
"""A failure counts as this much slower, log, than the slowest success."""


class PolicySearcher(Searcher):
    """Proposes what a policy finds likeliest.

    Without a policy it trains one: on what the prior says of this space, where there is a prior;
    otherwise it starts from chance and learns from the measurements alone. A policy that is given
    was trained on predictions already; beside it the prior has a guide of its own.

    Args:
        args, named: as for `Searcher`.
        policy: trained on other problems of the same kernel.

    Raises:
        UsageError: the policy knows other parameters than the space has.
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
        """Return a policy of this space alone: of its prior, or of nothing yet."""
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
        """Return what the policy would take, in order; draws as long as it is no more than one."""
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
