"""Configurations as points in a box: what is near in it should run alike.

Axes are the logarithms of sizes (a tile of 128 is to 64 what 64 is to 32), how often two divides
them (48 and 80 align alike, 64 does not), one axis per word of a choice, and the launch geometry:
threads per block, work per thread, tile areas, waves. Every axis is scaled to 0 … 1.
"""

from collections.abc import Mapping

import numpy as np

from foretune.device import Device
from foretune.features.alignment import alignment
from foretune.features.geometry import launch_geometry
from foretune.problem import Problem
from foretune.space import SearchSpace

SAMPLE = 5000
"""Configurations looked at to scale the axes and to find those that say the same."""
SAME = 0.9999
"""Correlation above which the later of two axes is left out."""


class Coordinates:
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
        self._problem = _numbers(problem or {})
        self._device = _numbers(device.specs if device else {})
        size = len(space)
        some = np.arange(size)
        if size > SAMPLE:
            some = np.random.default_rng(0).choice(size, SAMPLE, replace=False)
        axes = self._axes(some)
        self._kept = different(axes)
        self._low = {name: float(axes[name].min()) for name in self._kept}
        self._width = {name: float(np.ptp(axes[name])) for name in self._kept}

    def __len__(self) -> int:
        """Return the number of axes."""
        return len(self._kept)

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the numbered configurations as points, shape (numbers, axes), float64."""
        axes = self._axes(np.asarray(numbers))
        points = np.empty((len(numbers), len(self)))
        for i, name in enumerate(self._kept):
            points[:, i] = (axes[name] - self._low[name]) / self._width[name]
        return points

    def _axes(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        axes: dict[str, np.ndarray] = {}
        sizes: dict[str, np.ndarray] = {}
        codes = self._space.codes[numbers]
        for i, (name, values) in enumerate(self._space.parameters.items()):
            if any(isinstance(v, str) for v in values):
                axes |= {f"{name}={v}": (codes[:, i] == j) * 0.5 for j, v in enumerate(values)}
                continue
            column = np.array(values, dtype=float)
            sizes[name] = column[codes[:, i]]
            axes[name] = logarithm(column)[codes[:, i]]
            if len(values) > 2:
                axes[f"alignment.{name}"] = np.nan_to_num(alignment(column))[codes[:, i]]
        geometry = launch_geometry(self._problem, sizes, self._device)
        for name, quantity in geometry.items():
            axes[name] = np.broadcast_to(np.asarray(quantity, dtype=float), len(numbers))
        return axes


def different(axes: dict[str, np.ndarray]) -> list[str]:
    """Return the axes that vary and do not repeat an earlier one."""
    kept: dict[str, np.ndarray] = {}
    for name, values in axes.items():
        if not np.isfinite(values).all() or np.ptp(values) == 0:
            continue
        centred = values - values.mean()
        unit = centred / np.linalg.norm(centred)
        if all(abs(unit @ other) < SAME for other in kept.values()):
            kept[name] = unit
    return list(kept)


def logarithm(values: np.ndarray) -> np.ndarray:
    """Return sizes as their logarithms to base 2, also 0; negative numbers as they are."""
    if (values > 0).all():
        return np.log2(values)
    return np.log2(1 + values) if (values >= 0).all() else values


def _numbers(named: Mapping[str, object]) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(float(value))
        for name, value in named.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
