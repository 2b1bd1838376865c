"""Inputs of a process, each with a mean of zero and a deviation of one."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

MIN_DEVIATION = 1e-6
"""An input with a smaller deviation is the same everywhere, but for rounding."""


@dataclass(frozen=True)
class Scaling:
    """How inputs are scaled.

    Attributes:
        centre, scale: of each input; those that do not vary are left out.
    """

    center: np.ndarray
    scale: np.ndarray

    @classmethod
    def fit(cls, inputs: np.ndarray) -> Self:
        """Return the scaling of inputs (rows, inputs); NaN is unknown."""
        known = np.ma.masked_invalid(inputs)
        return cls(known.mean(axis=0).filled(0.0), known.std(axis=0).filled(0.0))

    def points(self, inputs: np.ndarray, gradual_count: int) -> tuple[np.ndarray, int]:
        """Return scaled inputs, and how many of the first ``gradual_count`` ones are left."""
        varies, center, scale = self._varying
        points = (inputs[:, varies] - center) / scale
        points[np.isnan(points)] = 0.0  # unknown: as most are
        return points, int((varies < gradual_count).sum())

    @cached_property
    def _varying(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        varies = np.flatnonzero(self.scale > MIN_DEVIATION)
        return varies, self.center[varies], self.scale[varies]

    def arrays(self) -> dict[str, Any]:
        """Return what `from_arrays` reads."""
        return {"centre": self.center, "scale": self.scale}

    @classmethod
    def from_arrays(cls, data: Mapping[str, np.ndarray]) -> Self:
        """Return what `arrays` returned."""
        return cls(data["centre"], data["scale"])
