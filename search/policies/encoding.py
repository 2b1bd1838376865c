"""What a policy sees: parameters and values as codes, problems and devices as numbers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from foretune.errors import UsageError
from foretune.search.policies.tasks import Task
from foretune.space import ABSENT, Configuration, SearchSpace
from foretune.values import Value

MAX_OBSERVATION = 5.0
"""Bound of observations, because networks extrapolate wildly."""
MIN_DISTINCT = 5
"""Minimum number of problems, or devices, for their sizes and specs to be inputs."""
MAX_COMBINATIONS = 2**62
"""Combinations are numbered by 64-bit integers."""
MIN_DEVIATION = 1e-9
"""Numbers that vary less are equal, but for rounding."""


@dataclass(frozen=True)
class Vocabulary:
    """The parameters a policy knows and their values; a value's position is its code."""

    parameters: Mapping[str, tuple[Value, ...]]

    @classmethod
    def from_spaces(cls, spaces: Iterable[SearchSpace]) -> Self:
        """Return the union of the values of ``spaces``, in order of appearance.

        Raises UsageError if there are none, or two have different parameters.
        """
        all_spaces = list(spaces)
        if not all_spaces:
            raise UsageError("there is no task: give at least one")
        first, *others = all_spaces
        parameters: dict[str, tuple[Value, ...]] = dict(first.parameters)
        for space in others:
            _require_names(space, parameters)
            for name, values in parameters.items():
                parameters[name] = tuple(dict.fromkeys([*values, *space.parameters[name]]))

        # In floats: the product of integers would overflow.
        n_combinations = np.prod([float(len(values)) for values in parameters.values()])
        if n_combinations > MAX_COMBINATIONS:
            raise UsageError("the tasks' spaces have more than 2^62 combinations in all")
        return cls(parameters)

    def encode(self, config: Configuration) -> list[int] | None:
        """Return the codes of a configuration; None if a value is unknown."""
        codes = []
        for name, values in self.parameters.items():
            value = config.get(name, ABSENT)
            if value not in values:
                return None
            codes.append(values.index(value))
        return codes

    def codes(self, space: SearchSpace) -> tuple[np.ndarray, np.ndarray]:
        """Return codes and indices of the configurations of ``space`` with known values.

        Raises UsageError if the space has other parameters.
        """
        _require_names(space, self.parameters)
        codes = np.empty((len(space.codes), len(self.parameters)), dtype=np.int64)
        for column, (name, values) in enumerate(self.parameters.items()):
            # A code is a position among the values: translate those of the space into the
            # vocabulary's, with -1 for unknown values.
            code_of_value = {value: code for code, value in enumerate(values)}
            translated = np.array([code_of_value.get(v, -1) for v in space.parameters[name]])
            codes[:, column] = translated[space.codes[:, space.names.index(name)]]
        indices = np.flatnonzero((codes >= 0).all(axis=1))
        return codes[indices], indices


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
        facts_of_tasks = list(map(_facts, tasks))
        names: set[str] = set()
        for group in ("problem.", "device."):
            names |= _inputs_of_group(facts_of_tasks, group)

        ordered = sorted(names)
        table = _table(facts_of_tasks, ordered)
        mean = np.nanmean(table, axis=0)
        deviation = np.nanstd(table, axis=0)

        # What is equal in all tasks tells nothing, and would be divided by zero.
        varying = np.flatnonzero(deviation > MIN_DEVIATION)
        return cls(
            names=tuple(ordered[i] for i in varying),
            mean=mean[varying],
            deviation=deviation[varying],
        )

    def encode(self, tasks: Sequence[Task]) -> np.ndarray:
        """Return one row of float32 per task."""
        table = _table(list(map(_facts, tasks)), self.names)
        scaled = (table - self.mean) / self.deviation
        scaled = np.nan_to_num(scaled)  # a gap becomes 0, the mean
        return scaled.clip(-MAX_OBSERVATION, MAX_OBSERVATION).astype(np.float32)


def _require_names(space: SearchSpace, names: Iterable[str]) -> None:
    if set(space.names) != set(names):
        raise UsageError(
            f"the space has parameters {', '.join(space.names)}, but the policy knows "
            f"{', '.join(names)}: a policy is for one kernel"
        )


def _facts(task: Task) -> dict[str, float]:
    """Return the logarithms of sizes and specs by name, and 1 for every string."""
    specs = task.device.specs if task.device else {}
    facts: dict[str, float] = {}
    for group, values in (("problem", task.problem), ("device", specs)):
        for name, value in values.items():
            if isinstance(value, str):
                facts[f"{group}.{name}={value}"] = 1.0
            else:
                # A logarithm that is defined for 0 and for negative numbers.
                logarithm = np.sign(value) * np.log2(1.0 + abs(value))
                facts[f"{group}.{name}"] = float(logarithm)
    return facts


def _inputs_of_group(facts_of_tasks: Sequence[Mapping[str, float]], group: str) -> set[str]:
    """Return the names of a group's facts; none if too few tasks differ in them."""
    names: set[str] = set()
    distinct = set()
    for facts in facts_of_tasks:
        of_group = {name: fact for name, fact in facts.items() if name.startswith(group)}
        names.update(of_group)
        distinct.add(frozenset(of_group.items()))
    return names if len(distinct) >= MIN_DISTINCT else set()


def _table(facts_of_tasks: Sequence[Mapping[str, float]], names: Sequence[str]) -> np.ndarray:
    """Return a row per task; missing numbers are NaN, missing strings 0."""
    table = np.empty((len(facts_of_tasks), len(names)))
    for column, name in enumerate(names):
        is_string = "=" in name
        missing = 0.0 if is_string else np.nan
        table[:, column] = [facts.get(name, missing) for facts in facts_of_tasks]
    return table
