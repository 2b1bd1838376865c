"""REINFORCE: policy gradients for agents.

Policy gradient (Williams, Machine Learning 8, 1992) with an entropy bonus (maximum entropy:
Haarnoja et al., ICML 2017). An update samples episodes of some tasks. Returns are standardized per
task, so that tasks with large differences do not dominate. The optimal policy at temperature t has
probabilities proportional to exp(reward / t); the temperature falls during training.
"""

from dataclasses import dataclass

import numpy as np

from foretune.progress import SILENT, Progress
from foretune.search.policies.agents import Agents, one_torch_thread
from foretune.search.policies.decisions import Decisions


@dataclass(frozen=True)
class TrainingSchedule:
    """Length and parameters of a training.

    Attributes:
        updates: number of updates.
        tasks: maximum number of random tasks per update.
        episodes: total number of episodes per update.
        hot: initial temperature, in units of the reward.
        cold: final temperature.
        rate: initial learning rate of Adam; it falls to a tenth.
    """

    updates: int = 300
    tasks: int = 8
    episodes: int = 256
    hot: float = 1.0
    cold: float = 0.05
    rate: float = 5e-3


def reinforce(
    agents: Agents,
    decisions: Decisions,
    schedule: TrainingSchedule,
    seed: int = 0,
    progress: Progress = SILENT,
) -> float:
    """Train ``agents`` in place; return the mean reward of the last update."""
    import torch

    rng, reward = np.random.default_rng(seed), np.zeros(1)
    parameters = list(agents.networks.parameters())
    adam = torch.optim.Adam(parameters, lr=schedule.rate)
    progress.start("training the policy", schedule.updates)
    with one_torch_thread():
        for update in range(schedule.updates if decisions.steps else 0):
            done = update / max(1, schedule.updates - 1)
            adam.param_groups[0]["lr"] = schedule.rate * 0.1**done
            temperature = schedule.hot * (schedule.cold / schedule.hot) ** done
            some = rng.permutation(decisions.tasks)[: schedule.tasks]
            tasks = np.repeat(some, max(2, schedule.episodes // len(some)))
            chosen, log_p = agents.sample_episodes(decisions, tasks, rng)
            reward = decisions.reward(tasks, chosen)
            soft = reward - temperature * log_p.detach().numpy()
            advantage = standardized(soft.reshape(len(some), -1)).ravel()
            loss = -(torch.from_numpy(advantage) * log_p).mean()
            adam.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            adam.step()
            progress.advance(f"mean reward {reward.mean():.3f}")
    return float(reward.mean())


def standardized(returns: np.ndarray) -> np.ndarray:
    """Return each return's distance from the mean of its row, in standard deviations."""
    centered = returns - returns.mean(axis=-1, keepdims=True)
    deviation = np.maximum(centered.std(axis=-1, keepdims=True), 1e-6)
    return np.asarray(centered / deviation, dtype=np.float32)
