"""Runs of one kernel as points: any problems, any configurations, in one box."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.features.families.tiles import cores_of
from foretune.features.featureset import alignment
from foretune.mapping import NamedValues
from foretune.problem import Problem
from foretune.search.coordinates import different, logarithm
from foretune.space import Configuration

LEAST_OCTAVES = 4.0
"""Problem sizes that span less are no further apart than this makes them."""
WARPS_FULL = 16.0
"""Warps on a multiprocessor that hide most of its latencies; scales waves of small programs."""


@dataclass(frozen=True)
class Rows:
    """Runs, measured or not, of one kernel on one device.

    Attributes:
        problems: one per row.
        configs: one per row.
        programs: how many programs each launches; NaN where nobody knows.
    """

    problems: Sequence[Problem]
    configs: Sequence[Configuration]
    programs: np.ndarray

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.configs)

    def __add__(self, other: "Rows") -> "Rows":
        return Rows(
            [*self.problems, *other.problems],
            [*self.configs, *other.configs],
            np.concatenate([self.programs, other.programs]),
        )

    def take(self, numbers: np.ndarray) -> "Rows":
        """Return the numbered rows."""
        return Rows(
            [self.problems[i] for i in numbers],
            [self.configs[i] for i in numbers],
            self.programs[numbers],
        )

    def of_problem(self, problem: Problem) -> list[Configuration]:
        """Return the configurations of one problem's rows."""
        return [c for p, c in zip(self.problems, self.configs, strict=True) if p == problem]

    def warps(self) -> np.ndarray:
        """Return warps per program; Triton's default, 4, where the configuration is silent."""
        return np.array([float(c.get("num_warps", 4)) for c in self.configs])


def waves_of(rows: Rows, cores: float) -> np.ndarray:
    """Return how many times each launch fills a device; NaN where programs are not known."""
    resident = np.maximum(WARPS_FULL / rows.warps(), 1.0)
    return rows.programs / (cores * resident)


def points_of(rows: Rows, specs: dict[str, Any]) -> tuple[np.ndarray, list[str]]:
    """Return where the rows lie, shape (rows, axes) in 0 … 1, and what the axes are called."""
    axes = {
        **_axes("config", rows.configs),
        **_axes("problem", rows.problems),
        **_launch(rows, float(np.asarray(cores_of(specs)))),
    }
    kept = different(axes)
    points = np.empty((len(rows), len(kept)))
    for i, name in enumerate(kept):
        least = LEAST_OCTAVES if name.startswith("problem.") else 0.0
        width = max(float(np.ptp(axes[name])), least)
        points[:, i] = (axes[name] - axes[name].min()) / width
    return points, kept


def _axes(kind: str, values: Sequence[NamedValues]) -> dict[str, np.ndarray]:
    """Return sizes as logarithms and how often two divides them, choices as one axis a word."""
    axes: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(n for v in values for n in v):
        column = [v.get(name, "") for v in values]
        if any(isinstance(v, str) for v in column):
            for word in sorted({str(v) for v in column}):
                axes[f"{kind}.{name}={word}"] = np.array([0.5 * (str(v) == word) for v in column])
            continue
        sizes = np.array(column, dtype=float)
        axes[f"{kind}.{name}"] = logarithm(sizes)
        if len(np.unique(sizes)) > 2:
            axes[f"{kind}.alignment.{name}"] = np.nan_to_num(alignment(sizes))
    return axes


def _launch(rows: Rows, cores: float) -> dict[str, np.ndarray]:
    """Return programs, warps in all, and how full the waves are."""
    if not np.isfinite(rows.programs).all() or not (rows.programs > 0).all():
        return {}
    waves = waves_of(rows, cores)
    return {
        "programs": np.log2(rows.programs),
        "launched_warps": np.log2(rows.programs * rows.warps()),
        "fill": waves / np.ceil(waves),
    }
