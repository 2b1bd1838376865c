"""Sequential decisions, the common interface of environments and policies.

An episode is a list of choices. Observations, legal choices and the final reward follow from the
task and the choices so far. Everything is vectorized over episodes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

FAILURE_REWARD = -float(np.log(10.0))
"""Reward of a failure, and lower bound of all rewards: ten times the reference."""
MAX_OBSERVATION = 5.0
"""Bound of observations, because networks extrapolate wildly."""
UNOWNED = -1


class Decisions(ABC):
    """Tasks that are solved by one choice after the other.

    Episodes are two arrays: ``tasks``, each episode's task number, and ``chosen``, shape (episodes,
    choices so far), the numbers of the chosen values.

    Attributes:
        tasks: number of tasks.
        steps: maximum number of choices per episode; shorter ones are padded with the choice 0.
        choices: maximum number of values of a choice.
        owners: for each entry of an observation, the step whose choice it shows, or `UNOWNED` for
            the context.
    """

    tasks: int
    steps: int
    choices: int
    owners: np.ndarray

    @abstractmethod
    def observe(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the observations before the next choice: float32, one row per episode."""

    @abstractmethod
    def legal(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return a mask of next choices that lead to a legal end, shape (episodes, choices)."""

    @abstractmethod
    def reward(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return complete episodes' log(reference / objective), at least `FAILURE_REWARD`."""

    def length(self, task: int) -> int:
        """Return the number of choices in an episode of ``task``."""
        return self.steps


def one_hot(codes: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return one indicator per value of every column of ``codes``; missing columns are 0."""
    parts = [np.zeros((len(codes), size), dtype=np.float32) for size in sizes]
    rows = np.arange(len(codes))
    for part, column in zip(parts, codes.T, strict=False):
        part[rows, column] = 1.0
    return np.hstack(parts) if parts else np.zeros((len(codes), 0), dtype=np.float32)
