"""A policy: trained over many problems, it proposes configurations of unseen ones at once.

It learns from predictions: the reward of a task is log(reference / objective).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from foretune.search.policies.agent import Agent, TrainingSchedule, reinforce
from foretune.search.policies.decisions import ConfigurationDecisions
from foretune.search.policies.encoding import Context, Vocabulary
from foretune.search.policies.tasks import Task
from foretune.space import Configuration

BEAM_WIDTH = 256
"""Width of the beam search for the likeliest configurations."""
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
        episodes, log_p = self.agent.beam_search(decisions, task=0, width=max(n, BEAM_WIDTH))
        numbers = decisions.indices_of(0, episodes[:n])
        configs = [task.space[int(number)] for number in numbers]
        return list(zip(configs, np.exp(log_p[:n]).tolist(), strict=True))
