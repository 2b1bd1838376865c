"""Runs of one kernel on one device: any problems, any configurations, in one box."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from foretune.features.families.tiles import cores_of
from foretune.mapping import FrozenParameters
from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.search.coordinates import Axes, AxisScaling, geometry_axes, value_axes, value_column
from foretune.space import Configuration

MIN_OCTAVES = 4.0
"""Problem sizes that span less are no further apart than this makes them."""
FULL_OCCUPANCY_WARPS = 16.0
"""Warps on a multiprocessor that hide most of its latencies; scales waves of small programs."""
CATEGORY_DISTANCE = 8.0
"""How far two problems are apart that differ in a word, in octaves of a size."""

Columns = dict[str, np.ndarray]
"""Values by name, floats or (where one is a word) objects; NaN or "" where a row has none."""


@dataclass(frozen=True)
class KernelRuns:
    """Runs, measured or not.

    Attributes:
        problems: one per row.
        configs: one per row.
        statics: what is known of each without running it: ``programs`` it launches, and what its
            compiled code shows (`foretune.collect.compiled.FEATURES`), as far as anybody looked.
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
        """Return the number of rows."""
        return len(self.configs)

    def __add__(self, other: "KernelRuns") -> "KernelRuns":
        return KernelRuns(
            [*self.problems, *other.problems],
            [*self.configs, *other.configs],
            [*self.statics, *other.statics],
        )

    def by_problem(self) -> dict[Problem, list[int]]:
        """Return the numbers of each problem's rows."""
        numbers: dict[Problem, list[int]] = {}
        for i, problem in enumerate(self.problems):
            numbers.setdefault(problem, []).append(i)
        return numbers

    @cached_property
    def config_columns(self) -> Columns:
        """What configurations say."""
        return _columns(self.configs)

    @cached_property
    def problem_columns(self) -> Columns:
        """What problems say."""
        return _columns(self.problems)

    @cached_property
    def programs(self) -> np.ndarray:
        """How many programs each launches; NaN where nobody knows."""
        return np.array([s.get("programs", np.nan) for s in self.statics], dtype=float)

    @cached_property
    def warps(self) -> np.ndarray:
        """Warps of a program; Triton's default, 4, where the configuration is silent."""
        return np.array([float(c.get("num_warps", 4)) for c in self.configs])

    @cached_property
    def resident(self) -> np.ndarray:
        """Programs that a multiprocessor holds, as compiled code shows; NaN where nobody looked."""
        return np.array([s.get("ctas_per_sm", np.nan) for s in self.statics], dtype=float)

    def points(self, specs: Mapping[str, Any]) -> tuple[np.ndarray, list[str]]:
        """Return where the rows lie, shape (rows, axes) in 0 … 1, and what the axes are called.

        Args:
            specs: of the device; its cores give waves.
        """
        axes: Axes = {}
        for name, values in self.config_columns.items():
            axes |= value_axes(f"config.{name}", values)
        for name, values in self.problem_columns.items():
            axes |= value_axes(f"problem.{name}", values)
        axes |= self._launches(specs)
        box = AxisScaling.fit(axes, {n: MIN_OCTAVES for n in axes if n.startswith("problem.")})
        return box.points(axes, len(self)), list(box.low)

    def waves(self, specs: Mapping[str, Any]) -> np.ndarray:
        """Return how many times each launch fills a device; NaN where programs are not known."""
        guess = np.maximum(FULL_OCCUPANCY_WARPS / self.warps, 1.0)
        resident = np.where(self.resident > 0, np.fmin(self.resident, guess), guess)
        return self.programs / (float(np.asarray(cores_of(specs))) * resident)

    def _launches(self, specs: Mapping[str, Any]) -> Axes:
        """Return programs, warps in all, and how full the waves are; else what names tell."""
        if not np.isfinite(self.programs).all() or not (self.programs > 0).all():
            problem_columns, config_columns = (
                _numeric(self.problem_columns),
                _numeric(self.config_columns),
            )
            return geometry_axes(problem_columns, config_columns, specs, len(self))
        waves = self.waves(specs)
        return {
            "programs": np.log2(self.programs),
            "launched_warps": np.log2(self.programs * self.warps),
            "fill": waves / np.ceil(waves),
        }


def nearest_first(measurements: Sequence[Measurement], problem: Problem) -> list[Measurement]:
    """Return ``measurements``: those of ``problem`` first, then of the problems most like it."""
    different = dict.fromkeys(m.problem for m in measurements)
    distances = {p: problem_distance(p, problem) for p in different}
    return sorted(measurements, key=lambda m: distances[m.problem])


def similarity(a: Problem, b: Problem) -> float:
    """Return how far what was learned on one problem holds for another: 1 if wholly, down to 0."""
    return float(2.0 ** (-max(problem_distance(a, b), 0.0) / CATEGORY_DISTANCE))


def problem_distance(a: Problem, b: Problem) -> float:
    """Return how far two problems are apart: octaves per size, and per word."""
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
