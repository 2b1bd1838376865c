"""Runs as points in a box: what is near in it should run alike.

Axes are the logarithms of sizes (a tile of 128 is to 64 what 64 is to 32), how often two divides
them (48 and 80 align alike, 64 does not), one axis per word of a choice (that a parameter does not
apply is such a word, beside the sizes that it may have), and the launch geometry:
threads per block, work per thread, tile areas, waves. Every axis is scaled to 0 … 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from foretune.device import Device
from foretune.features.alignment import alignment
from foretune.features.geometry import launch_geometry
from foretune.mapping import Value
from foretune.problem import Problem
from foretune.space import SearchSpace

SCALING_SAMPLE = 5000
"""Configurations looked at to scale the axes and to find those that say the same."""
MAX_CORRELATION = 0.9999
"""Correlation above which the later of two axes is left out."""

Axes = dict[str, np.ndarray]
"""Where some runs stand along each axis, by its name."""


def value_axes(name: str, values: np.ndarray) -> Axes:
    """Return where the values of a parameter or a size stand: along one axis or a few.

    Args:
        name: what they are values of.
        values: numbers; or objects, where some are words.
    """
    if values.dtype == object:
        is_word = np.array([isinstance(value, str) for value in values])
        words = sorted(set(values[is_word].tolist()))
        among_words = {f"{name}={word!r}": 0.5 * (values == word) for word in words}
        if is_word.all():
            return among_words
        among_sizes = value_axes(name, values[~is_word].astype(float))
        for axis, where in among_sizes.items():  # a word is no size: in the middle of them
            among_sizes[axis] = np.full(len(values), (where.min() + where.max()) / 2)
            among_sizes[axis][~is_word] = where
        return among_words | among_sizes
    axes = {name: _logarithm(values)}
    if len(np.unique(values)) > 2:
        axes[f"alignment.{name}"] = np.nan_to_num(alignment(values))
    return axes


def value_column(values: Sequence[Value]) -> np.ndarray:
    """Return values as numbers, or as objects where one is a word."""
    if any(isinstance(v, str) for v in values):
        column = np.empty(len(values), dtype=object)
        column[:] = values
        return column
    return np.array(values, dtype=float)


def geometry_axes(
    problem: Mapping[str, np.ndarray],
    config: Mapping[str, np.ndarray],
    specs: Mapping[str, object],
    rows: int,
) -> Axes:
    """Return the launch geometry of rows, as far as names tell it (`launch_geometry`)."""
    found = launch_geometry(problem, config, numeric_arrays(specs))
    return {n: np.broadcast_to(np.asarray(q, dtype=float), rows) for n, q in found.items()}


def numeric_arrays(named: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return what is a number, each as an array of no dimension."""
    return {
        name: np.asarray(float(value))
        for name, value in named.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


@dataclass(frozen=True)
class AxisScaling:
    """The axes that tell runs apart, each with where it begins and how long it is."""

    low: dict[str, float]
    length: dict[str, float]

    @classmethod
    def fit(cls, axes: Axes, min_length: Mapping[str, float] | None = None) -> Self:
        """Return the box around runs; axes that do not vary or repeat an earlier one are none.

        Args:
            axes: of the runs.
            min_length: how long some axes are at least.
        """
        kept, min_length = _distinct_axes(axes), min_length or {}
        return cls(
            {name: float(axes[name].min()) for name in kept},
            {name: max(float(np.ptp(axes[name])), min_length.get(name, 0.0)) for name in kept},
        )

    def points(self, axes: Axes, rows: int) -> np.ndarray:
        """Return where as many runs lie, shape (rows, axes of the box)."""
        points = np.empty((rows, len(self.low)))
        for i, (name, low) in enumerate(self.low.items()):
            points[:, i] = (axes[name] - low) / self.length[name]
        return points


class ConfigurationEncoder:
    """Places the configurations of one space.

    Args:
        space: whose configurations.
        problem: its sizes give tiles and waves.
        device: its cores give waves.
    """

    def __init__(
        self, space: SearchSpace, problem: Problem | None = None, device: Device | None = None
    ) -> None:
        self._space = space
        self._problem = numeric_arrays(problem or {})
        self._specs = device.specs if device else {}
        self._values = {n: value_column(v) for n, v in space.parameters.items()}
        self._axes_by_parameter = {
            name: value_axes(name, values) for name, values in self._values.items()
        }
        size = len(space)
        some = (
            np.arange(size)
            if size <= SCALING_SAMPLE
            else space.sample_indices(SCALING_SAMPLE, np.random.default_rng(0))
        )
        self._scaling = AxisScaling.fit(self._axes(some))

    def __len__(self) -> int:
        """Return the number of axes."""
        return len(self._scaling.low)

    def encode(self, indices: np.ndarray) -> np.ndarray:
        """Return the numbered configurations as points, shape (numbers, axes), float64."""
        return self._scaling.points(self._axes(np.asarray(indices)), len(indices))

    def _axes(self, indices: np.ndarray) -> Axes:
        axes: Axes = {}
        sizes: dict[str, np.ndarray] = {}
        codes = self._space.codes_of(indices)
        for i, (name, along) in enumerate(self._axes_by_parameter.items()):
            axes |= {axis: where[codes[:, i]] for axis, where in along.items()}
            if (values := self._values[name]).dtype != object:
                sizes[name] = values[codes[:, i]]
        return axes | geometry_axes(self._problem, sizes, self._specs, len(indices))


def _distinct_axes(axes: Axes) -> list[str]:
    """Return the axes that vary and do not repeat an earlier one."""
    kept: dict[str, np.ndarray] = {}
    for name, values in axes.items():
        if not np.isfinite(values).all() or np.ptp(values) == 0:
            continue
        centered = values - values.mean()
        unit = centered / np.linalg.norm(centered)
        if all(abs(unit @ other) < MAX_CORRELATION for other in kept.values()):
            kept[name] = unit
    return list(kept)


def _logarithm(values: np.ndarray) -> np.ndarray:
    """Return sizes as their logarithms to base 2, also 0; negative numbers as they are."""
    if (values > 0).all():
        return np.log2(values)
    return np.log2(1 + values) if (values >= 0).all() else values
