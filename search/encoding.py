"""Configurations and problems as points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from foretune.device import Device
from foretune.features.families.tiles import cores_of
from foretune.features.geometry import alignment, launch_geometry
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.space import ABSENT, Configuration, SearchSpace
from foretune.values import FrozenParameters, Value

SCALING_SAMPLE = 5000
"""Configurations sampled to scale the axes and to find redundant ones."""
MAX_CORRELATION = 0.9999
"""Correlation above which the later of two axes is redundant."""
MIN_OCTAVES = 4.0
"""Minimum length of a problem-size axis, so that nearby sizes stay close."""
FULL_OCCUPANCY_WARPS = 16.0
"""Warps per multiprocessor that hide most latencies; scales the waves of small programs."""
CATEGORY_DISTANCE = 8.0
"""Distance of two problems that differ in a string, in octaves of a size."""
DEFAULT_WARPS = 4
"""Triton's warps per program."""

Axes = dict[str, np.ndarray]
"""Coordinates of some rows, by axis name."""
Columns = dict[str, np.ndarray]
"""Values by name: floats, or objects if one is a string; NaN or "" if a row has none."""


def value_axes(name: str, values: np.ndarray) -> Axes:
    """Return the coordinates of the values of a parameter or a size, on one or more axes.

    ``name``: name of the parameter or size; ``values``: numbers, or objects if some are strings.
    """
    if values.dtype != object:
        axes = {name: _logarithm(values)}
        if len(np.unique(values)) > 2:
            axes[f"alignment.{name}"] = np.nan_to_num(alignment(values))
        return axes

    # Strings are half a length apart from each other.
    is_word = np.array([isinstance(value, str) for value in values])
    word_axes = {}
    for word in sorted(set(values[is_word].tolist())):
        word_axes[f"{name}={word!r}"] = 0.5 * (values == word)
    if is_word.all():
        return word_axes

    # On the axes of numbers, they are in the middle.
    number_axes = {}
    for axis, coordinates in value_axes(name, values[~is_word].astype(float)).items():
        middle = (coordinates.min() + coordinates.max()) / 2
        number_axes[axis] = np.full(len(values), middle)
        number_axes[axis][~is_word] = coordinates
    return word_axes | number_axes


def value_column(values: Sequence[Value]) -> np.ndarray:
    """Return values as numbers, or as objects if one is a string."""
    if any(isinstance(value, str) for value in values):
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
    """Return the launch geometry that the rows' parameter names imply (`launch_geometry`)."""
    geometry = launch_geometry(problem, config, numeric_arrays(specs))
    return {
        name: np.broadcast_to(np.asarray(values, dtype=float), rows)
        for name, values in geometry.items()
    }


def numeric_arrays(named: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return the numeric values, each as a 0-d array."""
    return {
        name: np.asarray(float(value))
        for name, value in named.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


@dataclass(frozen=True)
class AxisScaling:
    """The axes that distinguish rows, with offset and length of each."""

    low: dict[str, float]
    length: dict[str, float]

    @classmethod
    def fit(cls, axes: Axes, min_length: Mapping[str, float] | None = None) -> Self:
        """Fit the box around rows; constant and redundant axes are dropped.

        Some axes have a ``min_length``.
        """
        low = {}
        length = {}
        for name in _distinct_axes(axes):
            low[name] = float(axes[name].min())
            least = (min_length or {}).get(name, 0.0)
            length[name] = max(float(np.ptp(axes[name])), least)
        return cls(low, length)

    def points(self, axes: Axes, rows: int) -> np.ndarray:
        """Return the rows as points in the unit cube, shape (rows, axes of the box)."""
        points = np.empty((rows, len(self.low)))
        for i, (name, low) in enumerate(self.low.items()):
            points[:, i] = (axes[name] - low) / self.length[name]
        return points


class ConfigurationEncoder:
    """Encodes the configurations of one ``space`` as points.

    The sizes of the ``problem`` determine tiles and waves, the ``device``'s cores waves.
    Measurements of other problems, ``others``, are also encoded; sizes that differ between problems
    are axes. The attribute `others` has their points.
    """

    def __init__(
        self,
        space: SearchSpace,
        problem: Problem | None = None,
        device: Device | None = None,
        others: Sequence[Measurement] = (),
    ) -> None:
        self._space = space
        self._problem = numeric_arrays(problem or {})
        self._specs = device.specs if device else {}

        # The values of each parameter: those of the space, then those that only others have.
        values_of: dict[str, list[Value]] = {}
        for name, legal in space.parameters.items():
            of_others = [m.config.get(name, ABSENT) for m in others]
            values_of[name] = list(dict.fromkeys([*legal, *of_others]))
        self._values = {name: value_column(values) for name, values in values_of.items()}
        self._axes_by_parameter = {
            name: value_axes(name, values) for name, values in self._values.items()
        }

        # The axes of the space: of all configurations, or of some.
        if len(space) <= SCALING_SAMPLE:
            sample = np.arange(len(space))
        else:
            sample = space.sample_indices(SCALING_SAMPLE, np.random.default_rng(0))
        axes = self._config_axes(sample)
        self._own_coordinates: dict[str, float] = {}
        """The coordinates of this problem on the axes of problems."""
        if not others:
            self._scaling = AxisScaling.fit(axes)
            self.others = np.empty((0, len(self)))
            return

        # The sizes of problems are axes, on which this problem has one coordinate.
        other_axes = Axes()
        min_length: dict[str, float] = {}
        sizes = _columns([problem or Problem(), *(m.problem for m in others)])
        for name, values in sizes.items():
            for axis, coordinates in value_axes(f"problem.{name}", values).items():
                self._own_coordinates[axis] = float(coordinates[0])
                other_axes[axis] = coordinates[1:]
                axes[axis] = np.full(len(sample), coordinates[0])
                min_length[axis] = MIN_OCTAVES

        # The configurations of the other problems are on the axes of the space.
        codes = np.empty((len(others), len(values_of)), dtype=int)
        for column, (name, known) in enumerate(values_of.items()):
            codes[:, column] = [known.index(m.config.get(name, ABSENT)) for m in others]
        other_sizes = _numeric(_columns([m.problem for m in others]))
        other_axes |= self._axes_of_codes(codes, other_sizes)

        # Axes that both have are scaled by both.
        common = [name for name in axes if name in other_axes]
        both = {name: np.concatenate([axes[name], other_axes[name]]) for name in common}
        self._scaling = AxisScaling.fit(both, min_length)
        self.others = self._scaling.points(other_axes, len(others))

    def __len__(self) -> int:
        """Return the number of axes."""
        return len(self._scaling.low)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(self._scaling.low)

    def encode(self, indices: np.ndarray) -> np.ndarray:
        """Return configurations as points, shape (indices, axes), float64."""
        n = len(indices)
        axes = {axis: np.full(n, value) for axis, value in self._own_coordinates.items()}
        axes |= self._config_axes(np.asarray(indices))
        return self._scaling.points(axes, n)

    def _config_axes(self, indices: np.ndarray) -> Axes:
        return self._axes_of_codes(self._space.codes_of(indices), self._problem)

    def _axes_of_codes(self, codes: np.ndarray, problem: Mapping[str, np.ndarray]) -> Axes:
        """Return the axes of configurations: one or more per parameter, and the launch geometry.

        ``codes`` are positions in `_values`, shape (configurations, parameters).
        """
        axes: Axes = {}
        numbers: dict[str, np.ndarray] = {}
        for column, (name, axes_of_values) in enumerate(self._axes_by_parameter.items()):
            code = codes[:, column]
            for axis, coordinates in axes_of_values.items():
                axes[axis] = coordinates[code]
            values = self._values[name]
            if values.dtype != object:
                numbers[name] = values[code]
        return axes | geometry_axes(problem, numbers, self._specs, len(codes))


def _distinct_axes(axes: Axes) -> list[str]:
    """Return the axes that vary and are not redundant."""
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
    """Return log2 of sizes, also of 0; negative numbers are unchanged."""
    if (values > 0).all():
        return np.log2(values)
    return np.log2(1 + values) if (values >= 0).all() else values


@dataclass(frozen=True)
class KernelRuns:
    """Runs as rows, measured or not.

    ``statics`` are known properties of each row before it runs: number of ``programs``, and
    features of compiled code (`foretune.collect.compiled.FEATURES`), if available.
    """

    problems: Sequence[Problem]
    configs: Sequence[Configuration]
    statics: Sequence[Mapping[str, float]]

    @classmethod
    def from_measurements(cls, measurements: Sequence[Measurement]) -> Self:
        """Return measured runs as rows."""
        return cls(
            problems=[m.problem for m in measurements],
            configs=[m.config for m in measurements],
            statics=[m.static for m in measurements],
        )

    def __len__(self) -> int:
        return len(self.configs)

    def __add__(self, other: "KernelRuns") -> "KernelRuns":
        return KernelRuns(
            [*self.problems, *other.problems],
            [*self.configs, *other.configs],
            [*self.statics, *other.statics],
        )

    @property
    def warps(self) -> np.ndarray:
        """Warps per program; Triton's default if not set."""
        return np.array([float(c.get("num_warps", DEFAULT_WARPS)) for c in self.configs])

    def points(self, specs: Mapping[str, Any]) -> tuple[np.ndarray, list[str]]:
        """Return the rows as points in 0 … 1, shape (rows, axes), and the names of the axes.

        On a device with ``specs``, these are the values, and if the number of programs is known,
        programs, total warps and how full the waves are, else the geometry from names.
        """
        configs = _columns(self.configs)
        problems = _columns(self.problems)
        axes: Axes = {}
        for name, values in configs.items():
            axes |= value_axes(f"config.{name}", values)
        for name, values in problems.items():
            axes |= value_axes(f"problem.{name}", values)

        programs = self._statics("programs")
        if np.isfinite(programs).all() and (programs > 0).all():
            axes |= self._launch_axes(programs, specs)
        else:
            axes |= geometry_axes(_numeric(problems), _numeric(configs), specs, len(self))

        min_length = {name: MIN_OCTAVES for name in axes if name.startswith("problem.")}
        scaling = AxisScaling.fit(axes, min_length)
        return scaling.points(axes, len(self)), list(scaling.low)

    def _launch_axes(self, programs: np.ndarray, specs: Mapping[str, Any]) -> Axes:
        """Return axes of the launch: programs, total warps, and how full the waves are."""
        warps = self.warps
        # Programs that a multiprocessor holds: what hides latencies, or fewer if the compiled code
        # says so.
        enough = np.maximum(FULL_OCCUPANCY_WARPS / warps, 1.0)
        from_code = self._statics("ctas_per_sm")
        resident = np.where(from_code > 0, np.fmin(from_code, enough), enough)
        waves = programs / (float(np.asarray(cores_of(specs))) * resident)
        return {
            "programs": np.log2(programs),
            "launched_warps": np.log2(programs * warps),
            "fill": waves / np.ceil(waves),
        }

    def _statics(self, name: str) -> np.ndarray:
        return np.array([s.get(name, np.nan) for s in self.statics], dtype=float)


def nearest_first(measurements: Sequence[Measurement], problem: Problem) -> list[Measurement]:
    """Return ``measurements`` sorted by similarity to ``problem``, its own first."""
    distance_of = {}
    for measurement in measurements:
        if measurement.problem not in distance_of:
            distance_of[measurement.problem] = problem_distance(measurement.problem, problem)
    return sorted(measurements, key=lambda m: distance_of[m.problem])


def problem_distance(a: Problem, b: Problem) -> float:
    """Return the distance of two problems in octaves; a differing string is a constant.

    Equal problems are nearer than any others.
    """
    if a == b:
        return -1.0
    distance = 0.0
    for name in {*a, *b}:
        x = a.get(name)
        y = b.get(name)
        are_numbers = isinstance(x, (int, float)) and isinstance(y, (int, float))
        if are_numbers and x > 0 and y > 0:  # type: ignore[operator]
            distance += abs(float(np.log2(x) - np.log2(y)))  # type: ignore[arg-type]
        elif x != y:
            distance += CATEGORY_DISTANCE
    return distance


def _columns(rows: Sequence[FrozenParameters]) -> Columns:
    """Return the values of every name; "" where a row has none."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: value_column([row.get(name, "") for row in rows]) for name in names}


def _numeric(columns: Columns) -> Columns:
    return {name: values for name, values in columns.items() if values.dtype != object}
