"""Search spaces of Optuna as a cube, and as points: what is near in them should score alike.

A row holds one number per parameter, Optuna's internal one: the number itself, or the position of
a choice. In the cube every parameter goes from 0 to 1, on its own scale, and each value of a finite
one has a cell. Points are what the Gaussian process sees: numbers on their scale, choices as
`ConfigurationEncoder` place them.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from foretune.search.coordinates import ConfigurationEncoder
from foretune.space import SearchSpace

MIN_MOVE, MAX_MOVE = 1e-3, 0.3
"""How far, in the cube, neighbours go."""


class Dimensions:
    """Places the configurations of one search space.

    Args:
        search_space: the distributions of its parameters.
    """

    def __init__(self, search_space: Mapping[str, BaseDistribution]) -> None:
        self._distributions = search_space
        self._dimensions = [_dimension(d) for d in search_space.values()]
        self.sizes = np.array([d.size for d in self._dimensions])
        """How many values each parameter has; infinite for floats without a step."""

    def snap(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows rounded as all others are, so that equal ones are equal."""
        return self.from_cube(self.to_cube(rows))

    def params(self, row: np.ndarray) -> dict[str, Any]:
        """Return a row as values of parameters."""
        named = self._distributions.items()
        return {
            name: d.to_external_repr(v) for (name, d), v in zip(named, row.tolist(), strict=True)
        }

    def points(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows as points, shape (rows, axes)."""
        return np.hstack([d.axes(v) for d, v in zip(self._dimensions, rows.T, strict=True)])

    def to_cube(self, rows: np.ndarray) -> np.ndarray:
        """Return where in the cube the rows are."""
        return np.column_stack(
            [d.to_unit(v) for d, v in zip(self._dimensions, rows.T, strict=True)]
        )

    def from_cube(self, units: np.ndarray) -> np.ndarray:
        """Return the rows at these places of the cube."""
        return np.column_stack(
            [d.from_unit(u) for d, u in zip(self._dimensions, units.T, strict=True)]
        )

    def grid(self) -> np.ndarray:
        """Return all rows of a finite search space."""
        values = [d.to_unit(d.all_values()) for d in self._dimensions]
        return self.from_cube(np.stack(np.meshgrid(*values), axis=-1).reshape(-1, len(values)))

    def random(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return ``n`` random rows, uniform in the cube."""
        return self.from_cube(rng.random((n, len(self._dimensions))))

    def neighbors(self, rows: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return ``n`` rows that differ from one of ``rows`` in some parameters.

        Numbers go a little or far, a step at least; choices change to any other.
        """
        shape = (n, len(self._dimensions))
        units = self.to_cube(rows[rng.integers(len(rows), size=n)])
        moves = rng.random(shape) < rng.random((n, 1))
        moves[np.arange(n), rng.integers(shape[1], size=n)] = True
        far = np.exp(rng.uniform(np.log(MIN_MOVE), np.log(MAX_MOVE), (n, 1)))
        moved = units + rng.normal(size=shape) * np.maximum(far, 1 / self.sizes)
        chosen = [isinstance(d, _Choice) for d in self._dimensions]
        moved = np.where(chosen, rng.random(shape), np.clip(moved, 0, 1))
        return self.from_cube(np.where(moves, moved, units))


class _Number:
    """A float or an integer; linear or logarithmic, with a step or continuous."""

    def __init__(self, distribution: FloatDistribution | IntDistribution) -> None:
        self._low, self._high = float(distribution.low), float(distribution.high)
        self._step, self._log = distribution.step or 0, distribution.log
        self._start = self._scaled(np.array(self._low - self._step / 2))
        self._width = self._scaled(np.array(self._high + self._step / 2)) - self._start
        self.size = math.inf
        if self._step:
            self.size = round((self._high - self._low) / self._step) + 1

    def from_unit(self, units: np.ndarray) -> np.ndarray:
        values = self._start + units * self._width
        values = np.exp(values) if self._log else values
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
    """One of a list: sizes if all are numbers, else words."""

    def __init__(self, distribution: CategoricalDistribution) -> None:
        self.size = len(distribution.choices)
        sizes = [
            c
            for c in distribution.choices
            if isinstance(c, (int, float)) and not isinstance(c, bool) and math.isfinite(c)
        ]
        words = [str(i) for i in range(self.size)]
        values = sizes if len(set(sizes)) == self.size else words
        self._axes = ConfigurationEncoder(SearchSpace({"choice": values})).encode(
            np.arange(self.size)
        )

    def from_unit(self, units: np.ndarray) -> np.ndarray:
        return np.minimum(np.floor(units * self.size), self.size - 1)

    def to_unit(self, values: np.ndarray) -> np.ndarray:
        return (values + 0.5) / self.size

    def axes(self, values: np.ndarray) -> np.ndarray:
        return self._axes[values.astype(int)]

    def all_values(self) -> np.ndarray:
        return np.arange(self.size)


def _dimension(distribution: BaseDistribution) -> _Number | _Choice:
    if isinstance(distribution, CategoricalDistribution):
        return _Choice(distribution)
    assert isinstance(distribution, (FloatDistribution, IntDistribution))
    return _Number(distribution)
