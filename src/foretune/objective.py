"""Objectives: what is minimised."""

from enum import StrEnum
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from foretune.measurement import Measurement

Number = TypeVar("Number", float, "npt.NDArray[np.float64]")


class Scalarization(Protocol):
    """What a searcher minimises: an objective, one within limits, or several made into one."""

    def value_of(self, measurement: Measurement) -> float:
        """Return a number above 0: infinite if the run does not count, NaN if nobody knows."""


class Objective(StrEnum):
    """A number per launch, smaller is better."""

    TIME = "time"
    ENERGY = "energy"
    EDP = "edp"

    @property
    def needs_power(self) -> bool:
        """Whether it can only be measured with a power meter."""
        return self is not Objective.TIME

    @property
    def unit(self) -> str:
        """The unit of its values."""
        return {"time": "ms", "energy": "mJ", "edp": "mJ·ms"}[self.value]

    def compute(self, time_ms: Number, power_w: Number) -> Number:
        """Return the objective from time (ms) and mean power (W); energy is power × time (mJ)."""
        if self is Objective.TIME:
            return time_ms
        energy_mj = power_w * time_ms
        return energy_mj if self is Objective.ENERGY else energy_mj * time_ms

    def value_of(self, measurement: Measurement) -> float:
        """Return the objective of a measurement: infinite if it failed, NaN without power."""
        if not measurement.ok:
            return float("inf")
        return self.compute(measurement.time_ms, measurement.power_w)
