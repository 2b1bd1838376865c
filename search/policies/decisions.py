"""Sequential decisions: what the environments and the policies both look at.

An episode is a list of choices, made one after the other; all that is seen, all that is legal and
what it was worth in the end follow from the task and the choices so far. Everything is computed for
many episodes at once, on whole NumPy arrays.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

FAILURE_REWARD = -float(np.log(10.0))
"""Reward of a failure, and the least of all: as much as ten times the reference."""
MAX_OBSERVATION = 5.0
"""Largest number that is observed, either way: networks extrapolate wildly."""
UNOWNED = -1


class Decisions(ABC):
    """Tasks that are solved by one choice after the other.

    Episodes are given as two arrays: ``tasks``, the number of each episode's task, and ``chosen``,
    shape (episodes, choices made so far), the numbers of the values chosen.

    Attributes:
        tasks: how many tasks there are.
        steps: most choices of an episode; shorter ones go on with the only choice 0.
        choices: most values of one choice.
        owners: for every number of an observation the step whose choice it shows, `UNOWNED` if
            it is known from the start.
    """

    tasks: int
    steps: int
    choices: int
    owners: np.ndarray

    @abstractmethod
    def observe(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return what is seen before the next choice: float32, a row of ``owners`` each."""

    @abstractmethod
    def legal(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return which next choices can still become a legal end, shape (episodes, choices)."""

    @abstractmethod
    def reward(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return what complete episodes are worth: log(reference / objective), at least `WORST`."""

    def length(self, task: int) -> int:
        """Return how many choices an episode of ``task`` has."""
        return self.steps


def one_hot(codes: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return one indicator per value of every column of ``codes``; those not yet there are 0."""
    parts = [np.zeros((len(codes), size), dtype=np.float32) for size in sizes]
    rows = np.arange(len(codes))
    for part, column in zip(parts, codes.T, strict=False):
        part[rows, column] = 1.0
    return np.hstack(parts) if parts else np.zeros((len(codes), 0), dtype=np.float32)
