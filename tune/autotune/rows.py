"""Runs of one kernel as points: any problems, any configurations, in one box."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.features.alignment import alignment
from foretune.features.families.tiles import cores_of
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
        statics: what is known of each without running it: ``programs`` it launches, and what its
            compiled code shows (`foretune.collect.compiled.FEATURES`), as far as anybody looked.
    """

    problems: Sequence[Problem]
    configs: Sequence[Configuration]
    statics: Sequence[Mapping[str, float]]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.configs)

    def __add__(self, other: "Rows") -> "Rows":
        return Rows(
            [*self.problems, *other.problems],
            [*self.configs, *other.configs],
            [*self.statics, *other.statics],
        )

    def take(self, numbers: np.ndarray) -> "Rows":
        """Return the numbered rows."""
        return Rows(
            [self.problems[i] for i in numbers],
            [self.configs[i] for i in numbers],
            [self.statics[i] for i in numbers],
        )

    def of_problem(self, problem: Problem) -> list[Configuration]:
        """Return the configurations of one problem's rows."""
        return [c for p, c in zip(self.problems, self.configs, strict=True) if p == problem]

    @property
    def programs(self) -> np.ndarray:
        """How many programs each launches; NaN where nobody knows."""
        return np.array([s.get("programs", np.nan) for s in self.statics], dtype=float)

    def warps(self) -> np.ndarray:
        """Return warps per program; Triton's default, 4, where the configuration is silent."""
        return np.array([float(c.get("num_warps", 4)) for c in self.configs])


def waves_of(rows: Rows, cores: float) -> np.ndarray:
    """Return how many times each launch fills a device; NaN where programs are not known."""
    guess = np.maximum(WARPS_FULL / rows.warps(), 1.0)
    shown = np.array([s.get("ctas_per_sm", np.nan) for s in rows.statics], dtype=float)
    resident = np.where(shown > 0, np.minimum(shown, guess), guess)
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
