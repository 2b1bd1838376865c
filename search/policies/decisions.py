"""Configuring as sequential decisions: observations, legal choices, and rewards.

An episode sets one parameter after the other. Observations, legal choices and the final reward
follow from the task and the choices so far. Everything is vectorized over episodes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from foretune.errors import UsageError
from foretune.search.policies.encoding import Context, Vocabulary
from foretune.search.policies.tasks import Task

FAILURE_REWARD = -float(np.log(10.0))
"""Reward of a failure, and lower bound of all rewards: ten times the reference."""


class Decisions(ABC):
    """Tasks that are solved by a sequence of choices.

    Episodes are two arrays: ``tasks``, each episode's task number, and ``chosen``, shape (episodes,
    choices so far), the numbers of the chosen values. An episode has at most ``steps`` choices
    among at most ``choices`` values. An `Agent` continues shorter ones with the choice 0, the only
    legal one after their end; `DecisionEnv` ends them. ``width`` is the size of an observation.
    """

    tasks: int
    steps: int
    choices: int
    width: int

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


class ConfigurationDecisions(Decisions):
    """Chooses the values of parameters, in the vocabulary's order.

    A choice is legal if a configuration of the space has this prefix. ``vocabulary`` and
    ``context`` are by default those of the ``tasks``. Raises UsageError if there is no task, or
    tasks have different parameters.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        vocabulary: Vocabulary | None = None,
        context: Context | None = None,
    ) -> None:
        self.vocabulary = vocabulary or Vocabulary.from_spaces(task.space for task in tasks)
        self.context = context or Context.from_tasks(tasks)
        self.tasks = len(tasks)
        self.spaces = [task.space for task in tasks]
        self._rewards = [task.reward for task in tasks]
        self._contexts = self.context.encode(tasks)

        self.sizes = [len(values) for values in self.vocabulary.parameters.values()]
        self.steps = len(self.sizes)
        self.choices = max([1, *self.sizes])
        self.width = self._contexts.shape[1] + sum(self.sizes) + max(1, self.steps)

        # Tasks may share a space, which then has one tree.
        trees: dict[int, _PrefixTree] = {}
        for space in self.spaces:
            if id(space) not in trees:
                codes, indices = self.vocabulary.codes(space)
                trees[id(space)] = _PrefixTree.from_codes(codes, indices, self.sizes)
        self._trees = [trees[id(space)] for space in self.spaces]

    def observe(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the context, the choices so far, and an indicator of the next parameter."""
        observations = np.zeros((len(tasks), self.width), dtype=np.float32)
        start = self._contexts.shape[1]
        observations[:, :start] = self._contexts[tasks]

        # An indicator per value of each parameter that was chosen.
        rows = np.arange(len(tasks))
        for column, size in zip(chosen.T, self.sizes, strict=False):
            observations[rows, start + column] = 1.0
            start += size

        # After the last choice, there is no next parameter.
        next_parameter = self._contexts.shape[1] + sum(self.sizes) + chosen.shape[1]
        observations[:, next_parameter : next_parameter + 1] = 1.0
        return observations

    def legal(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return a mask of the next values after each prefix ``chosen``."""
        legal = np.zeros((len(tasks), self.choices), dtype=bool)
        for task in np.unique(tasks):
            rows = np.flatnonzero(tasks == task)
            next_values = self._trees[task].next_values(chosen[rows])
            legal[rows, : next_values.shape[1]] = next_values
        return legal

    def reward(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return log(reference / objective) of complete configurations; at least `FAILURE_REWARD`.

        Raises UsageError if a task has no reward.
        """
        rewards = np.empty(len(tasks))
        for task in np.unique(tasks):
            reward = self._rewards[task]
            if reward is None:
                raise UsageError(f"task {task} has no reward: give it a reward to learn from it")
            is_of_task = tasks == task
            rewards[is_of_task] = reward(self.indices_of(task, chosen[is_of_task]))
        return np.fmax(rewards, FAILURE_REWARD)

    def indices_of(self, task: int, chosen: np.ndarray) -> np.ndarray:
        """Return the indices of complete configurations in the task's space."""
        return self._trees[task].indices_of(chosen)


@dataclass(frozen=True, eq=False)
class _PrefixTree:
    """Configurations as sorted mixed-radix integers, in which a prefix is an interval.

    Attributes:
        keys: the integers, ascending.
        indices: the number of each configuration in its space.
        sizes: number of values of each parameter, the radices.
    """

    keys: np.ndarray
    indices: np.ndarray
    sizes: list[int]

    @classmethod
    def from_codes(cls, codes: np.ndarray, indices: np.ndarray, sizes: list[int]) -> Self:
        if len(codes) == 0:
            raise UsageError("no configuration of the space has only values that the policy knows")
        keys = _keys(codes, sizes)
        order = np.argsort(keys)
        return cls(keys[order], indices[order], sizes)

    def next_values(self, chosen: np.ndarray) -> np.ndarray:
        """Return a mask of the next parameter's values, by prefix."""
        step = chosen.shape[1]
        size = self.sizes[step]
        keys_per_value = int(np.prod(self.sizes[step + 1 :], dtype=np.int64))

        # A value is legal if a key lies between the first one with it and that of the next value.
        prefixes = _keys(chosen, self.sizes)[:, None] * size + np.arange(size + 1)
        positions = np.searchsorted(self.keys, prefixes * keys_per_value)
        return np.diff(positions) > 0

    def indices_of(self, chosen: np.ndarray) -> np.ndarray:
        return self.indices[np.searchsorted(self.keys, _keys(chosen, self.sizes))]


def _keys(codes: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return each row of codes, complete or a prefix, as one integer."""
    keys = np.zeros(len(codes), dtype=np.int64)
    for column, size in zip(codes.T, sizes, strict=False):
        keys = keys * size + column
    return keys
