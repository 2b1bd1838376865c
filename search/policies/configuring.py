"""Configuring as sequential decisions: an episode sets one parameter after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from foretune.errors import UsageError
from foretune.search.policies.decisions import FAILURE_REWARD, UNOWNED, Decisions, one_hot
from foretune.search.policies.encoding import Context, Vocabulary
from foretune.search.policies.tasks import Task


class ConfigurationDecisions(Decisions):
    """Chooses the values of parameters, in the vocabulary's order.

    A choice is legal if a configuration of the space has this prefix.

    Args:
        tasks: the problems to configure.
        vocabulary: parameters and values; by default those of the tasks.
        context: encoding of the tasks; by default one fitted to them.

    Raises:
        UsageError: there is no task, or tasks have different parameters.
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
        self.sizes = self.vocabulary.sizes
        self.steps, self.choices = len(self.sizes), max([1, *self.sizes])
        self._rewards = [task.reward for task in tasks]
        self._rows = self.context.encode(tasks)
        self.spaces = [task.space for task in tasks]
        trees = {  # one for all tasks that share a space
            id(s): _PrefixTree.from_codes(*self.vocabulary.codes(s), self.sizes)
            for s in {id(s): s for s in self.spaces}.values()
        }
        self._trees = [trees[id(space)] for space in self.spaces]
        self.owners = np.repeat(
            [UNOWNED, *range(self.steps), UNOWNED],
            [self._rows.shape[1], *self.sizes, max(1, self.steps)],
        )

    def observe(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the context, the choices so far, and an indicator of the next parameter."""
        next_one = np.zeros((len(tasks), max(1, self.steps)), dtype=np.float32)
        next_one[:, chosen.shape[1] : chosen.shape[1] + 1] = 1.0
        return np.hstack([self._rows[tasks], one_hot(chosen, self.sizes), next_one])

    def legal(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return a mask of the next values after each prefix ``chosen``."""
        legal = np.zeros((len(tasks), self.choices), dtype=bool)
        for task in np.unique(tasks):
            here = np.flatnonzero(tasks == task)
            following = self._trees[task].next_values(chosen[here])
            legal[here, : following.shape[1]] = following
        return legal

    def reward(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the tasks' rewards of complete configurations.

        Raises:
            UsageError: a task has no reward.
        """
        rewards = np.empty(len(tasks))
        for task in np.unique(tasks):
            here = tasks == task
            if (reward := self._rewards[task]) is None:
                raise UsageError(f"task {task} has no reward: give it one to learn from it")
            rewards[here] = reward(self.indices_of(task, chosen[here]))
        return np.fmax(rewards, FAILURE_REWARD)

    def indices_of(self, task: int, chosen: np.ndarray) -> np.ndarray:
        """Return the indices of complete configurations in the task's space."""
        return self._trees[task].indices_of(chosen)


@dataclass(frozen=True, eq=False)
class _PrefixTree:
    """Configurations as sorted mixed-radix integers, in which a prefix is an interval."""

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
        size, rest = self.sizes[step], int(np.prod(self.sizes[step + 1 :], dtype=np.int64))
        first = _keys(chosen, self.sizes)[:, None] * size + np.arange(size + 1)
        return np.diff(np.searchsorted(self.keys, first * rest)) > 0

    def indices_of(self, chosen: np.ndarray) -> np.ndarray:
        return self.indices[np.searchsorted(self.keys, _keys(chosen, self.sizes))]


def _keys(codes: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    keys = np.zeros(len(codes), dtype=np.int64)
    for column, size in zip(codes.T, sizes, strict=False):
        keys = keys * size + column
    return keys
