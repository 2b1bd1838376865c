"""Optuna's search spaces as rows, positions in a unit cube, and points.

- A row has one number per parameter, in Optuna's internal representation: the value of a number,
  the index of a choice.
- A position in the unit cube is where random numbers and neighbors are drawn.
- A point is what the Gaussian process sees: several axes per parameter, see `ConfigurationEncoder`.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from foretune.search.encoding import ConfigurationEncoder
from foretune.space import SearchSpace

MIN_MOVE = 1e-3
MAX_MOVE = 0.3
"""Smallest and largest typical distance of neighbors in the unit cube."""


class Dimensions:
    """Encodes the configurations of one Optuna search space.

    ``search_space``: the distributions of its parameters.
    """

    def __init__(self, search_space: Mapping[str, BaseDistribution]) -> None:
        self.search_space = search_space
        self._dimensions = [
            _Choice(d) if isinstance(d, CategoricalDistribution) else _Number(d)
            for d in search_space.values()
        ]
        self.sizes = np.array([d.size for d in self._dimensions])
        """Number of values of each parameter; infinite for floats without a step."""

    def params(self, row: np.ndarray) -> dict[str, Any]:
        """Return a row as parameter values."""
        pairs = zip(self.search_space.items(), row.tolist(), strict=True)
        return {name: distribution.to_external_repr(value) for (name, distribution), value in pairs}

    def points(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows as points, shape (rows, axes)."""
        columns = zip(self._dimensions, rows.T, strict=True)
        return np.hstack([dimension.axes(values) for dimension, values in columns])

    def to_cube(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows' positions in the unit cube."""
        columns = zip(self._dimensions, rows.T, strict=True)
        return np.column_stack([dimension.to_unit(values) for dimension, values in columns])

    def from_cube(self, positions: np.ndarray) -> np.ndarray:
        """Return the rows at these positions in the unit cube."""
        columns = zip(self._dimensions, positions.T, strict=True)
        return np.column_stack([dimension.from_unit(units) for dimension, units in columns])

    def grid(self) -> np.ndarray:
        """Return all rows of a finite search space."""
        positions = [d.to_unit(d.all_values()) for d in self._dimensions]
        product = np.stack(np.meshgrid(*positions), axis=-1)
        return self.from_cube(product.reshape(-1, len(positions)))

    def random(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return ``n`` random rows, uniform in the cube."""
        return self.from_cube(rng.random((n, len(self._dimensions))))

    def neighbors(self, rows: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return ``n`` rows that differ from one of ``rows`` in some parameters.

        Numbers move by at least one step; choices change to any other.
        """
        shape = (n, len(self._dimensions))
        starts = self.to_cube(rows[rng.integers(len(rows), size=n)])

        # Some neighbors differ in most parameters, some in few, and each in at least one.
        moves = rng.random(shape) < rng.random((n, 1))
        moves[np.arange(n), rng.integers(shape[1], size=n)] = True

        distance = np.exp(rng.uniform(np.log(MIN_MOVE), np.log(MAX_MOVE), (n, 1)))
        step = 1 / self.sizes
        moved_numbers = starts + rng.normal(size=shape) * np.maximum(distance, step)
        is_choice = [isinstance(d, _Choice) for d in self._dimensions]
        moved = np.where(is_choice, rng.random(shape), np.clip(moved_numbers, 0, 1))
        return self.from_cube(np.where(moves, moved, starts))


class _Number:
    """A float or an integer, linear or logarithmic, with or without a step."""

    def __init__(self, distribution: Any) -> None:
        self._low = float(distribution.low)
        self._high = float(distribution.high)
        self._step = distribution.step or 0
        self._log = distribution.log

        # In the cube, each value of a stepped number gets an interval.
        self._start = self._scaled(np.array(self._low - self._step / 2))
        self._width = self._scaled(np.array(self._high + self._step / 2)) - self._start

        self.size = math.inf
        if self._step:
            self.size = round((self._high - self._low) / self._step) + 1

    def from_unit(self, units: np.ndarray) -> np.ndarray:
        scaled = self._start + units * self._width
        values = np.exp(scaled) if self._log else scaled
        if self._step:
            values = self._low + np.round((values - self._low) / self._step) * self._step
        return np.clip(values, self._low, self._high)

    def to_unit(self, values: np.ndarray) -> np.ndarray:
        return (self._scaled(values) - self._start) / self._width

    def axes(self, values: np.ndarray) -> np.ndarray:
        low, high = self._scaled(np.array([self._low, self._high]))
        return ((self._scaled(values) - low) / (high - low))[:, None]

    def all_values(self) -> np.ndarray:
        return self._low + self._step * np.arange(self.size)

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        return np.log(values) if self._log else values


class _Choice:
    """A categorical parameter: ordered if all choices are numbers."""

    def __init__(self, distribution: CategoricalDistribution) -> None:
        self.size = len(distribution.choices)
        numbers = [choice for choice in distribution.choices if _is_finite_number(choice)]
        are_distinct_numbers = len(set(numbers)) == self.size
        values: list[Any] = [str(i) for i in range(self.size)]
        if are_distinct_numbers:
            values = numbers
        encoder = ConfigurationEncoder(SearchSpace({"choice": values}))
        self._axes = encoder.encode(np.arange(self.size))

    def from_unit(self, units: np.ndarray) -> np.ndarray:
        return np.minimum(np.floor(units * self.size), self.size - 1)

    def to_unit(self, values: np.ndarray) -> np.ndarray:
        return (values + 0.5) / self.size

    def axes(self, values: np.ndarray) -> np.ndarray:
        return self._axes[values.astype(int)]

    def all_values(self) -> np.ndarray:
        return np.arange(self.size)


def _is_finite_number(choice: object) -> bool:
    if isinstance(choice, bool) or not isinstance(choice, int | float):
        return False
    return math.isfinite(choice)
