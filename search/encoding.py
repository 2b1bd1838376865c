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

SCALING_SAMPLE = 5000  # configurations sampled to scale the axes and to find redundant ones
MAX_CORRELATION = 0.9999  # correlation above which the later of two axes is redundant
MIN_OCTAVES = 4.0  # minimum length of a problem-size axis, so that nearby sizes stay close
FULL_OCCUPANCY_WARPS = 16.0
"""Warps per multiprocessor that hide most latencies; scales the waves of small programs."""
CATEGORY_DISTANCE = 8.0  # distance of two problems that differ in a string, in octaves of a size
DEFAULT_WARPS = 4  # Triton's

Axes = dict[str, np.ndarray]
"""Coordinates of some rows, by axis name."""
Columns = dict[str, np.ndarray]
"""Values by name: floats, or objects if one is a string; NaN or "" if a row has none."""


def value_axes(name: str, values: np.ndarray) -> Axes:
    """Return the coordinates of the values of a parameter or a size, on one or more axes.

    ``name``: name of the parameter or size; ``values``: numbers, or objects if some are strings.
    """
    if values.dtype == object:
        is_word = np.array([isinstance(value, str) for value in values])
        words = sorted(set(values[is_word].tolist()))
        among_words = {f"{name}={word!r}": 0.5 * (values == word) for word in words}
        if is_word.all():
            return among_words
        among_sizes = value_axes(name, values[~is_word].astype(float))
        for axis, where in among_sizes.items():  # strings go in the middle
            among_sizes[axis] = np.full(len(values), (where.min() + where.max()) / 2)
            among_sizes[axis][~is_word] = where
        return among_words | among_sizes
    axes = {name: _logarithm(values)}
    if len(np.unique(values)) > 2:
        axes[f"alignment.{name}"] = np.nan_to_num(alignment(values))
    return axes


def value_column(values: Sequence[Value]) -> np.ndarray:
    """Return values as numbers, or as objects if one is a string."""
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
    """Return the launch geometry that the rows' parameter names imply (`launch_geometry`)."""
    found = launch_geometry(problem, config, numeric_arrays(specs))
    return {n: np.broadcast_to(np.asarray(q, dtype=float), rows) for n, q in found.items()}


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
        kept, min_length = _distinct_axes(axes), min_length or {}
        return cls(
            {name: float(axes[name].min()) for name in kept},
            {name: max(float(np.ptp(axes[name])), min_length.get(name, 0.0)) for name in kept},
        )

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
        known = {
            name: list(dict.fromkeys([*values, *(m.config.get(name, ABSENT) for m in others)]))
            for name, values in space.parameters.items()
        }
        self._values = {name: value_column(values) for name, values in known.items()}
        self._axes_by_parameter = {
            name: value_axes(name, values) for name, values in self._values.items()
        }

        # The axes of the space: of all configurations, or of some.
        if len(space) <= SCALING_SAMPLE:
            sample = np.arange(len(space))
        else:
            sample = space.sample_indices(SCALING_SAMPLE, np.random.default_rng(0))
        axes = self._config_axes(sample)
        self._here: dict[str, float] = {}  # coordinates of this problem on the axes of problems
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
                self._here[axis] = float(coordinates[0])
                other_axes[axis] = coordinates[1:]
                axes[axis] = np.full(len(sample), coordinates[0])
                min_length[axis] = MIN_OCTAVES

        # The configurations of the other problems are on the axes of the space.
        codes = [
            [legal.index(m.config.get(name, ABSENT)) for name, legal in known.items()]
            for m in others
        ]
        other_sizes = _numeric(_columns([m.problem for m in others]))
        other_axes |= self._axes_of_codes(np.array(codes), other_sizes)

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
        here = {axis: np.full(len(indices), where) for axis, where in self._here.items()}
        return self._scaling.points(here | self._config_axes(np.asarray(indices)), len(indices))

    def _config_axes(self, indices: np.ndarray) -> Axes:
        return self._axes_of_codes(self._space.codes_of(indices), self._problem)

    def _axes_of_codes(self, codes: np.ndarray, problem: Mapping[str, np.ndarray]) -> Axes:
        axes: Axes = {}
        sizes: dict[str, np.ndarray] = {}
        for i, (name, along) in enumerate(self._axes_by_parameter.items()):
            axes |= {axis: where[codes[:, i]] for axis, where in along.items()}
            if (values := self._values[name]).dtype != object:
                sizes[name] = values[codes[:, i]]
        return axes | geometry_axes(problem, sizes, self._specs, len(codes))


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
            [m.problem for m in measurements],
            [m.config for m in measurements],
            [m.static for m in measurements],
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
    different = dict.fromkeys(m.problem for m in measurements)
    distances = {p: problem_distance(p, problem) for p in different}
    return sorted(measurements, key=lambda m: distances[m.problem])


def problem_distance(a: Problem, b: Problem) -> float:
    """Return the distance of two problems in octaves; a differing string is a constant."""
    if a == b:
        return -1.0
    apart = 0.0
    for name in {*a, *b}:
        x, y = a.get(name), b.get(name)
        numbers = isinstance(x, (int, float)) and isinstance(y, (int, float))
        if numbers and x > 0 and y > 0:  # type: ignore[operator]
            apart += abs(float(np.log2(x) - np.log2(y)))  # type: ignore[arg-type]
        elif x != y:
            apart += CATEGORY_DISTANCE
    return apart


def _columns(values: Sequence[FrozenParameters]) -> Columns:
    names = dict.fromkeys(n for v in values for n in v)
    return {name: value_column([v.get(name, "") for v in values]) for name in names}


def _numeric(columns: Columns) -> Columns:
    return {name: values for name, values in columns.items() if values.dtype != object}
