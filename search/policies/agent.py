"""A small network that gives every legal choice a probability, trained by REINFORCE.

Policy gradient (Williams, Machine Learning 8, 1992) with an entropy bonus (maximum entropy:
Haarnoja et al., ICML 2017): the optimal policy at temperature t has probabilities proportional to
exp(reward / t), and t falls. Returns are standardized per task, so that none dominates.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from foretune.search.policies.decisions import Decisions
from foretune.support.lazy import require

require("torch", "rl", "a policy")
import torch  # noqa: E402

HIDDEN = 128  # width of the two hidden layers


class Agent:
    """A network that makes every choice. Initially, all legal choices are equally likely.

    ``decisions`` determines the shapes of observations and choices.
    """

    def __init__(self, decisions: Decisions, seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            last = torch.nn.Linear(HIDDEN, decisions.choices)
            torch.nn.init.zeros_(last.weight)
            torch.nn.init.zeros_(last.bias)
            self.network = torch.nn.Sequential(
                torch.nn.Linear(decisions.width, HIDDEN),
                torch.nn.ReLU(),
                torch.nn.Linear(HIDDEN, HIDDEN),
                torch.nn.ReLU(),
                last,
            )

    def log_probabilities(
        self, decisions: Decisions, tasks: np.ndarray, chosen: np.ndarray
    ) -> torch.Tensor:
        """Return the log probability of every next choice; -inf for illegal ones."""
        scores = self.network(torch.from_numpy(decisions.observe(tasks, chosen)))
        is_legal = torch.from_numpy(decisions.legal(tasks, chosen))
        return torch.log_softmax(scores.masked_fill(~is_legal, -torch.inf), dim=1)

    def log_likelihood(
        self, decisions: Decisions, tasks: np.ndarray, chosen: np.ndarray
    ) -> torch.Tensor:
        """Return the differentiable log probability of complete episodes."""
        total = torch.zeros(len(tasks))
        rows = np.arange(len(tasks))
        for step in range(decisions.steps):
            log_p = self.log_probabilities(decisions, tasks, chosen[:, :step])
            total = total + log_p[rows, chosen[:, step]]
        return total

    def sample_episodes(
        self, decisions: Decisions, tasks: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, torch.Tensor]:
        """Sample an episode of each of ``tasks``; return its choices and their log probability."""
        chosen = np.zeros((len(tasks), 0), dtype=np.int64)
        total = torch.zeros(len(tasks))
        rows = np.arange(len(tasks))
        for _ in range(decisions.steps):
            log_p = self.log_probabilities(decisions, tasks, chosen)
            # The largest of log p + Gumbel noise is a draw from p.
            noise = rng.gumbel(size=log_p.shape)
            drawn = (log_p.detach().numpy() + noise).argmax(axis=1)
            total = total + log_p[rows, drawn]
            chosen = np.column_stack([chosen, drawn])
        return chosen, total

    def beam_search(
        self, decisions: Decisions, task: int, width: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return up to ``width`` different episodes of ``task`` and their log p, likeliest first.

        The beam search is exact while at most ``width`` prefixes are legal.
        """
        chosen = np.zeros((1, 0), dtype=np.int64)
        total = np.zeros(1)
        with torch.no_grad(), one_torch_thread():
            for _ in range(decisions.steps):
                tasks = np.full(len(chosen), task)
                log_p = self.log_probabilities(decisions, tasks, chosen).double().numpy()
                # Every prefix with every legal choice; the likeliest stay.
                parents, choices = np.nonzero(np.isfinite(log_p))
                extended = total[parents] + log_p[parents, choices]
                best = np.argsort(-extended, kind="stable")[:width]
                chosen = np.column_stack([chosen[parents[best]], choices[best]])
                total = extended[best]
        return chosen, total


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Return a context with one torch thread, which is faster for networks this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class TrainingSchedule:
    """Length and parameters of a training.

    An update draws at most ``tasks`` tasks and ``episodes`` episodes in all. The temperature falls
    from ``hot`` to ``cold``, in units of the reward, Adam's learning ``rate`` to a tenth.
    """

    updates: int = 300
    tasks: int = 8
    episodes: int = 256
    hot: float = 1.0
    cold: float = 0.05
    rate: float = 5e-3


def reinforce(
    agent: Agent, decisions: Decisions, schedule: TrainingSchedule, seed: int = 0
) -> None:
    """Train ``agent`` in place."""
    if decisions.steps == 0:
        return
    rng = np.random.default_rng(seed)
    parameters = list(agent.network.parameters())
    adam = torch.optim.Adam(parameters, lr=schedule.rate)
    with one_torch_thread():
        for update in range(schedule.updates):
            progress = update / max(1, schedule.updates - 1)
            adam.param_groups[0]["lr"] = schedule.rate * 0.1**progress
            temperature = schedule.hot * (schedule.cold / schedule.hot) ** progress

            # Several episodes of each of some tasks.
            drawn_tasks = rng.permutation(decisions.tasks)[: schedule.tasks]
            n_episodes = max(2, schedule.episodes // len(drawn_tasks))
            tasks = np.repeat(drawn_tasks, n_episodes)
            chosen, log_p = agent.sample_episodes(decisions, tasks, rng)

            # The reward with the bonus of entropy, standardized per task.
            returns = decisions.reward(tasks, chosen) - temperature * log_p.detach().numpy()
            advantages = standardized(returns.reshape(len(drawn_tasks), n_episodes)).ravel()
            loss = -(torch.from_numpy(advantages) * log_p).mean()
            adam.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            adam.step()


def standardized(returns: np.ndarray) -> np.ndarray:
    """Return each return's distance from the mean of its row, in standard deviations."""
    centered = returns - returns.mean(axis=-1, keepdims=True)
    deviation = np.maximum(centered.std(axis=-1, keepdims=True), 1e-6)
    return np.asarray(centered / deviation, dtype=np.float32)
