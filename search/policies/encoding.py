"""Encodes parameters, problems and devices as inputs of a policy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from foretune.errors import UsageError
from foretune.search.policies.decisions import MAX_OBSERVATION
from foretune.search.policies.tasks import Task
from foretune.space import Configuration, SearchSpace
from foretune.values import Value

MIN_DISTINCT = 5
"""Minimum number of problems, or devices, for their sizes and specs to be inputs."""


@dataclass(frozen=True)
class Vocabulary:
    """The parameters a policy knows and their values; a value's position is its code."""

    parameters: Mapping[str, tuple[Value, ...]]

    @classmethod
    def from_spaces(cls, spaces: Iterable[SearchSpace]) -> Self:
        """Return the union of the values of ``spaces``, in order of appearance.

        Raises:
            UsageError: there are none, or two have different parameters.
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

    @property
    def sizes(self) -> list[int]:
        """Number of values of each parameter."""
        return [len(values) for values in self.parameters.values()]

    def encode(self, config: Configuration) -> list[int] | None:
        """Return the codes of a configuration; None if a value is unknown."""
        try:
            return [values.index(config[name]) for name, values in self.parameters.items()]
        except ValueError:
            return None

    def codes(self, space: SearchSpace) -> tuple[np.ndarray, np.ndarray]:
        """Return codes and indices of the configurations of ``space`` with known values.

        Raises:
            UsageError: the space has other parameters.
        """
        _require_names(space, self.parameters)
        codes = np.empty((len(space), len(self.parameters)), dtype=np.int64)
        for i, (name, values) in enumerate(self.parameters.items()):
            code_of = {value: k for k, value in enumerate(values)}
            here = np.array([code_of.get(v, -1) for v in space.parameters[name]])
            codes[:, i] = here[space.codes[:, space.names.index(name)]]
        indices = np.flatnonzero((codes >= 0).all(axis=1))
        return codes[indices], indices


def _require_names(space: SearchSpace, names: Iterable[str]) -> None:
    if set(space.names) != set(names):
        raise UsageError(
            f"the space has parameters {', '.join(space.names)}, the policy knows "
            f"{', '.join(names)}: a policy is of one kernel"
        )


@dataclass(frozen=True, eq=False)
class Context:
    """Encodes a task before the first choice, as numbers of mean 0 and deviation 1.

    Sizes and specs enter as logarithms, strings as indicators. Missing values are 0, the mean.
    Values are clipped to `FARTHEST`.

    Attributes:
        names: names of the numbers.
        mean: mean of each over the training tasks.
        deviation: standard deviation of each.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def from_tasks(cls, tasks: Sequence[Task], min_distinct: int = MIN_DISTINCT) -> Self:
        """Return the context fitted to ``tasks``.

        With fewer than ``min_distinct`` problems (or devices), these are not inputs: too few points
        to interpolate between.
        """
        known: list[dict[str, float]] = [{} for _ in tasks]
        for facts_of in (_problem_facts, _device_facts):
            facts = [facts_of(task) for task in tasks]
            if len({frozenset(f.items()) for f in facts}) >= min_distinct:
                known = [{**k, **f} for k, f in zip(known, facts, strict=True)]
        names = sorted({name for facts in known for name in facts})
        table = _table(known, names)
        mean, deviation = np.nanmean(table, axis=0), np.nanstd(table, axis=0)
        varies = np.flatnonzero(deviation > 1e-9)
        return cls(tuple(names[i] for i in varies), mean[varies], deviation[varies])

    def encode(self, tasks: Sequence[Task]) -> np.ndarray:
        """Return one row of float32 per task."""
        known = [_problem_facts(task) | _device_facts(task) for task in tasks]
        table = (_table(known, self.names) - self.mean) / self.deviation
        return np.nan_to_num(table).clip(-MAX_OBSERVATION, MAX_OBSERVATION).astype(np.float32)


def _problem_facts(task: Task) -> dict[str, float]:
    return _facts("problem", task.problem)


def _device_facts(task: Task) -> dict[str, float]:
    return _facts("device", task.device.specs if task.device else {})


def _facts(group: str, values: Mapping[str, Value]) -> dict[str, float]:
    """Return logarithms of numbers by name, and 1 for every string."""
    return {
        f"{group}.{name}={v}" if isinstance(v, str) else f"{group}.{name}": (
            1.0 if isinstance(v, str) else float(np.sign(v) * np.log2(1.0 + abs(v)))
        )
        for name, v in values.items()
    }


def _table(known: Sequence[Mapping[str, float]], names: Sequence[str]) -> np.ndarray:
    """Return a row per task; missing numbers are NaN, missing strings 0."""
    cells = [[facts.get(n, 0.0 if "=" in n else np.nan) for n in names] for facts in known]
    return np.array(cells, dtype=float).reshape(len(known), len(names))
