"""A recorded problem as a call of its kernel, with the time of every configuration.

`recorded_tables` makes such calls from tables of other projects, `recorded_gpu` from what this
folder's commands timed on a GPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from launch_training import MeasuredProblem
from recorded_kernels import softmax_rows

from foretune.device import Device
from foretune.features.launches import TileLaunch, launch_features
from foretune.measurement import Measurement, Status
from foretune.space import Configuration
from foretune.tune.triton.problem_key import Call, problem_from_arguments
from foretune.tune.triton.source_hash import source_hash
from foretune.tune.triton.tiles import ShapeLaw, shape_law, tile_launches

TILE_KNOBS = ("TALL", "WIDE", "DEEP")
"""Parameters of `recorded_kernels.tiled_product`: rows, columns and depth of a tile."""

_LAWS: dict[Any, ShapeLaw | None] = {}
"""What the code of a kernel shows, by kernel, fixed tile and list: tracing it takes a while."""


@dataclass(frozen=True)
class Recorded:
    """One problem: a call, and the time of every configuration of its list.

    Attributes:
        kernel: The kernel's name in the table.
        dtype: The type that tells 16-bit and 32-bit problems apart.
        call: The call as a decorator sees it.
        configs: The list, in the table's order.
        time_ms: The time of each configuration; infinite if it failed.
    """

    kernel: str
    dtype: str
    call: Call
    configs: tuple[Configuration, ...]
    time_ms: np.ndarray

    def run(self, config: Configuration) -> Measurement:
        """Return the measurement of a configuration."""
        time_ms = self._times[config]
        if np.isinf(time_ms):
            return self.call.failure(config, Status.RUNTIME_ERROR, "does not run")
        return self.call.success(config, time_ms, [time_ms])

    def kept(self, config: Configuration) -> float:
        """Return the share of the best speed that a configuration keeps."""
        return float(self.time_ms.min() / self._times[config])

    @property
    def rows(self) -> int | None:
        """Rows of a product; None for other kernels."""
        return self.call.arguments.get("M")

    @property
    def is_product(self) -> bool:
        """Whether blocks multiply tiles."""
        if self.call.function is softmax_rows:
            return False
        return self.law is None or bool(self.law.shapes.products)

    @cached_property
    def launches(self) -> list[TileLaunch]:
        """The launch of each configuration; only of kernels that multiply tiles."""
        launches = tile_launches(self.call, self.configs, self.law)
        assert launches is not None
        return launches

    @cached_property
    def learned(self) -> MeasuredProblem:
        """The problem as `launch_training.fit_orders` learns from it."""
        columns = launch_features(self.launches, self.call.device)
        return MeasuredProblem(self.kernel, columns, self.time_ms)

    @property
    def law(self) -> ShapeLaw | None:
        """What the kernel's code shows of its blocks; None without code."""
        fixed_tile = tuple(self.call.arguments.get(name) for name in TILE_KNOBS)
        key = (self.kernel, fixed_tile, self.configs)
        if key not in _LAWS:
            _LAWS[key] = shape_law(self.call, self.configs)
        return _LAWS[key]

    @cached_property
    def _times(self) -> dict[Configuration, float]:
        return dict(zip(self.configs, self.time_ms.tolist(), strict=True))


def as_call(
    function: Any, key: Sequence[str], arguments: Mapping[str, Any], device: Device, grid: Any
) -> Call:
    """Return the call of a kernel without its code; ``key`` names the arguments of its key."""
    return Call(
        kernel=function.__name__,
        source=source_hash(function),
        problem=problem_from_arguments(function, key, arguments),
        arguments=arguments,
        device=device,
        grid=grid,
    )
