"""Runs of one kernel as points: any problems, any configurations, in one box."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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


Columns = dict[str, np.ndarray]
"""Values by name, floats or (where one is a word) objects; NaN or "" where a row has none."""


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
        both = Rows(
            [*self.problems, *other.problems],
            [*self.configs, *other.configs],
            [*self.statics, *other.statics],
        )
        for name in ("knobs", "sizes", "programs", "warps", "resident"):  # not to be made again
            both.__dict__[name] = _joined(
                getattr(self, name), getattr(other, name), len(self), len(other)
            )
        return both

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

    @cached_property
    def knobs(self) -> Columns:
        """What configurations say."""
        return _columns(self.configs)

    @cached_property
    def sizes(self) -> Columns:
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


def waves_of(rows: Rows, cores: float) -> np.ndarray:
    """Return how many times each launch fills a device; NaN where programs are not known."""
    guess = np.maximum(WARPS_FULL / rows.warps, 1.0)
    resident = np.where(rows.resident > 0, np.fmin(rows.resident, guess), guess)
    return rows.programs / (cores * resident)


def points_of(rows: Rows, specs: dict[str, Any]) -> tuple[np.ndarray, list[str]]:
    """Return where the rows lie, shape (rows, axes) in 0 … 1, and what the axes are called."""
    axes = {
        **_axes("config", rows.knobs),
        **_axes("problem", rows.sizes),
        **_launch(rows, float(np.asarray(cores_of(specs)))),
    }
    kept = different(axes)
    points = np.empty((len(rows), len(kept)))
    for i, name in enumerate(kept):
        least = LEAST_OCTAVES if name.startswith("problem.") else 0.0
        width = max(float(np.ptp(axes[name])), least)
        points[:, i] = (axes[name] - axes[name].min()) / width
    return points, kept


def _axes(kind: str, columns: Columns) -> dict[str, np.ndarray]:
    """Return sizes as logarithms and how often two divides them, choices as one axis a word."""
    axes: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        if column.dtype == object:
            words = column.astype(str)
            for word in np.unique(words):
                axes[f"{kind}.{name}={word}"] = 0.5 * (words == word)
            continue
        axes[f"{kind}.{name}"] = logarithm(column)
        if len(np.unique(column)) > 2:
            axes[f"{kind}.alignment.{name}"] = np.nan_to_num(alignment(column))
    return axes


def _columns(values: Sequence[NamedValues]) -> Columns:
    names = dict.fromkeys(n for v in values for n in v)
    return {name: _column([v.get(name, "") for v in values]) for name in names}


def _column(values: list[Any]) -> np.ndarray:
    if any(isinstance(v, str) for v in values):
        column = np.empty(len(values), dtype=object)
        column[:] = values
        return column
    return np.array(values, dtype=float)


def _joined(a: Any, b: Any, rows_a: int, rows_b: int) -> Any:
    """Return the columns of rows one after the other; "" where one of them lacks a name."""
    if isinstance(a, np.ndarray):
        return np.concatenate([a, b])
    nothing = np.array([""], dtype=object)
    return {
        name: np.concatenate(
            [a.get(name, np.repeat(nothing, rows_a)), b.get(name, np.repeat(nothing, rows_b))]
        )
        for name in dict.fromkeys((*a, *b))
    }


def _launch(rows: Rows, cores: float) -> dict[str, np.ndarray]:
    """Return programs, warps in all, and how full the waves are."""
    if not np.isfinite(rows.programs).all() or not (rows.programs > 0).all():
        return {}
    waves = waves_of(rows, cores)
    return {
        "programs": np.log2(rows.programs),
        "launched_warps": np.log2(rows.programs * rows.warps),
        "fill": waves / np.ceil(waves),
    }
