"""Configuring as sequential decisions: tasks, their observations, and legal choices.

An episode sets one parameter after the other. Observations, legal choices and the final reward
follow from the task and the choices so far. Everything is vectorized over episodes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from foretune.device import Device
from foretune.errors import UsageError
from foretune.problem import Problem
from foretune.space import ABSENT, Configuration, SearchSpace
from foretune.values import Value

FAILURE_REWARD = -float(np.log(10.0))
"""Reward of a failure, and lower bound of all rewards: ten times the reference."""
MAX_OBSERVATION = 5.0  # bound of observations, because networks extrapolate wildly


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


Reward = Callable[[np.ndarray], np.ndarray]
"""Maps configuration numbers to log(reference / objective); -inf for failures."""


@dataclass(frozen=True, eq=False)
class Task:
    """One problem to configure on one device.

    ``space`` has the legal configurations; ``reward`` maps their numbers to rewards, and is None if
    only proposals are needed.
    """

    space: SearchSpace
    problem: Problem = field(default_factory=Problem)
    device: Device | None = None
    reward: Reward | None = None


MIN_DISTINCT = 5  # minimum number of problems, or devices, for their sizes and specs to be inputs


@dataclass(frozen=True)
class Vocabulary:
    """The parameters a policy knows and their values; a value's position is its code."""

    parameters: Mapping[str, tuple[Value, ...]]

    @classmethod
    def from_spaces(cls, spaces: Iterable[SearchSpace]) -> Self:
        """Return the union of the values of ``spaces``, in order of appearance.

        Raises UsageError if there are none, or two have different parameters.
        """
        values: dict[str, dict[Value, None]] | None = None
        for space in spaces:
            values = values or {name: {} for name in space.names}
            _require_names(space, values)
            for name, known in values.items():
                known.update(dict.fromkeys(space.parameters[name]))
        if values is None:
            raise UsageError("there is no task: give at least one")
        if np.prod([float(len(known)) for known in values.values()]) > 2**62:
            raise UsageError("the tasks' spaces have more than 2^62 combinations in all")
        return cls({name: tuple(known) for name, known in values.items()})

    def encode(self, config: Configuration) -> list[int] | None:
        """Return the codes of a configuration; None if a value is unknown."""
        try:
            return [
                values.index(config.get(name, ABSENT)) for name, values in self.parameters.items()
            ]
        except ValueError:
            return None

    def codes(self, space: SearchSpace) -> tuple[np.ndarray, np.ndarray]:
        """Return codes and indices of the configurations of ``space`` with known values.

        Raises UsageError if the space has other parameters.
        """
        _require_names(space, self.parameters)
        codes = np.empty((len(space.codes), len(self.parameters)), dtype=np.int64)
        for i, (name, values) in enumerate(self.parameters.items()):
            code_of = {value: k for k, value in enumerate(values)}
            here = np.array([code_of.get(v, -1) for v in space.parameters[name]])
            codes[:, i] = here[space.codes[:, space.names.index(name)]]
        indices = np.flatnonzero((codes >= 0).all(axis=1))
        return codes[indices], indices


def _require_names(space: SearchSpace, names: Iterable[str]) -> None:
    if set(space.names) != set(names):
        raise UsageError(
            f"the space has parameters {', '.join(space.names)}, but the policy knows "
            f"{', '.join(names)}: a policy is for one kernel"
        )


@dataclass(frozen=True, eq=False)
class Context:
    """Encodes a task before the first choice, as numbers with mean 0 and deviation 1.

    Sizes and specs enter as logarithms, strings as indicators. Missing values are 0, the mean.
    Values are clipped to `MAX_OBSERVATION`. ``mean`` and ``deviation`` are over the training tasks.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def from_tasks(cls, tasks: Sequence[Task]) -> Self:
        """Return the context fitted to ``tasks``.

        With fewer than `MIN_DISTINCT` problems (or devices), these are not inputs: too few points
        to interpolate between.
        """
        facts, names = list(map(_facts, tasks)), set[str]()
        for group in ("problem.", "device."):
            told = [{n: v for n, v in f.items() if n.startswith(group)} for f in facts]
            if len({frozenset(t.items()) for t in told}) >= MIN_DISTINCT:
                names.update(*told)
        ordered = sorted(names)
        table = _table(facts, ordered)
        mean, deviation = np.nanmean(table, axis=0), np.nanstd(table, axis=0)
        varies = np.flatnonzero(deviation > 1e-9)
        return cls(tuple(ordered[i] for i in varies), mean[varies], deviation[varies])

    def encode(self, tasks: Sequence[Task]) -> np.ndarray:
        """Return one row of float32 per task."""
        table = (_table(list(map(_facts, tasks)), self.names) - self.mean) / self.deviation
        return np.nan_to_num(table).clip(-MAX_OBSERVATION, MAX_OBSERVATION).astype(np.float32)


def _facts(task: Task) -> dict[str, float]:
    """Return the logarithms of sizes and specs by name, and 1 for every string."""
    found: dict[str, float] = {}
    specs = task.device.specs if task.device else {}
    for group, values in (("problem", task.problem), ("device", specs)):
        for name, v in values.items():
            if isinstance(v, str):
                found[f"{group}.{name}={v}"] = 1.0
            else:
                found[f"{group}.{name}"] = float(np.sign(v) * np.log2(1.0 + abs(v)))
    return found


def _table(known: Sequence[Mapping[str, float]], names: Sequence[str]) -> np.ndarray:
    """Return a row per task; missing numbers are NaN, missing strings 0."""
    cells = [[facts.get(n, 0.0 if "=" in n else np.nan) for n in names] for facts in known]
    return np.array(cells, dtype=float).reshape(len(known), len(names))


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
        self.sizes = [len(v) for v in self.vocabulary.parameters.values()]
        self.steps, self.choices = len(self.sizes), max([1, *self.sizes])
        self._rewards = [task.reward for task in tasks]
        self._rows = self.context.encode(tasks)
        self.spaces = [task.space for task in tasks]
        trees = {  # one for all tasks that share a space
            id(s): _PrefixTree.from_codes(*self.vocabulary.codes(s), self.sizes)
            for s in {id(s): s for s in self.spaces}.values()
        }
        self._trees = [trees[id(space)] for space in self.spaces]
        self.width = self._rows.shape[1] + sum(self.sizes) + max(1, self.steps)

    def observe(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the context, the choices so far, and an indicator of the next parameter."""
        seen = np.zeros((len(tasks), self.width), dtype=np.float32)
        start = self._rows.shape[1]
        seen[:, :start] = self._rows[tasks]
        for column, size in zip(chosen.T, self.sizes, strict=False):
            seen[np.arange(len(tasks)), start + column] = 1.0
            start += size
        start = self._rows.shape[1] + sum(self.sizes) + chosen.shape[1]
        seen[:, start : start + 1] = 1.0
        return seen

    def legal(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return a mask of the next values after each prefix ``chosen``."""
        legal = np.zeros((len(tasks), self.choices), dtype=bool)
        for task in np.unique(tasks):
            here = np.flatnonzero(tasks == task)
            following = self._trees[task].next_values(chosen[here])
            legal[here, : following.shape[1]] = following
        return legal

    def reward(self, tasks: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return log(reference / objective) of complete configurations; at least `FAILURE_REWARD`.

        Raises UsageError if a task has no reward.
        """
        rewards = np.empty(len(tasks))
        for task in np.unique(tasks):
            here = tasks == task
            if (reward := self._rewards[task]) is None:
                raise UsageError(f"task {task} has no reward: give it a reward to learn from it")
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
