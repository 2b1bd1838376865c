"""Objectives and hard limits on measured columns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from foretune.errors import UnknownName, UsageError, require_known
from foretune.measurement import Measurement

Number = TypeVar("Number", float, npt.NDArray[np.float64])
LIMITABLE_COLUMNS = ("time_ms", "power_w", "energy_mj", "compile_s", "relative_error")
"""Columns that can be limited, besides every ``static.<name>`` that a kernel's runs report."""
POWER_COLUMNS = ("power_w", "energy_mj")
"""Columns that need a power meter."""
NORMAL_QUANTILE_95 = 1.645
"""Standard deviations to each side of a 90 % interval."""
MIN_SPREAD = 1e-6
"""Smallest standard deviation of a predicted logarithm."""


class Scalarization(Protocol):
    """The value a searcher minimizes: an objective, perhaps with limits, or several objectives."""

    def value_of(self, measurement: Measurement) -> float:
        """Return a positive number; infinite for failures, NaN if it was not measured."""


class Objective(StrEnum):
    """A number per launch; smaller is better."""

    TIME = "time"
    ENERGY = "energy"
    EDP = "edp"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the objective of this name; raise UnknownName if there is none."""
        require_known("objective", str(name), [objective.value for objective in cls])
        return cls(name)

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


@dataclass(frozen=True)
class Limit:
    """Upper limit of one column of the run table.

    Attributes:
        column: one of `LIMITABLE_COLUMNS`, or ``static.<name>``.
        maximum: in the column's unit.
    """

    column: str
    maximum: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a limit such as ``power_w=300``."""
        column, equals_sign, number = (part.strip() for part in text.partition("="))
        if not equals_sign:
            raise UsageError(f"limit {text!r} has no '=': give COLUMN=VALUE, like power_w=300")
        if column not in LIMITABLE_COLUMNS and not column.startswith("static."):
            raise UnknownName("limit", column, [*LIMITABLE_COLUMNS, "static.…"])
        try:
            maximum = float(number)
        except ValueError:
            maximum = math.nan
        if not 0 < maximum < math.inf:
            raise UsageError(f"limit {text!r}: {number!r} is not a number above 0")
        return cls(column, maximum)

    def __str__(self) -> str:
        return f"{self.column} ≤ {self.maximum:g}"

    @property
    def needs_power(self) -> bool:
        """Whether it can only be checked with a power meter."""
        return self.column in POWER_COLUMNS

    def value_of(self, measurement: Measurement) -> float:
        """Return the limited column of a measurement; NaN if it was not measured."""
        if self.column in LIMITABLE_COLUMNS:
            return float(getattr(measurement, self.column))
        return float(measurement.static.get(self.column.removeprefix("static."), math.nan))

    def is_satisfied_by(self, measurement: Measurement) -> bool:
        """Whether the measurement is within the limit; False if the column was not measured."""
        return self.value_of(measurement) <= self.maximum

    def probability(self, predicted: Mapping[str, Any]) -> "npt.NDArray[np.float64]":
        """Return the predicted probability of staying within the limit.

        ``predicted`` holds the columns of `Predictor.predict`; without the limited one, the
        probability is 1. Errors of the logarithm are taken as normal.
        """
        from scipy.special import ndtr

        if self.column not in predicted:
            return np.ones(len(predicted["p_valid"]))
        value = np.asarray(predicted[self.column])
        spread = np.log(predicted[f"{self.column}_high"] / value) / NORMAL_QUANTILE_95
        distance = np.log(self.maximum / value)
        return np.asarray(ndtr(distance / np.maximum(spread, MIN_SPREAD)))


@dataclass(frozen=True)
class ConstrainedObjective:
    """An objective within hard limits; a searcher treats a violation as a failure."""

    objective: Objective
    limits: tuple[Limit, ...]

    def value_of(self, measurement: Measurement) -> float:
        """Return the objective of a measurement: infinite if it failed or breaks a limit."""
        if not all(limit.is_satisfied_by(measurement) for limit in self.limits):
            return math.inf
        return self.objective.value_of(measurement)

    def is_known(self, measurement: Measurement) -> bool:
        """Whether the measurement has every column that is needed; True if it failed."""
        if not measurement.ok:
            return True
        needed = [limit.value_of(measurement) for limit in self.limits]
        needed.append(self.objective.value_of(measurement))
        return not any(map(math.isnan, needed))


def limitable_columns_of(measurement: Measurement) -> list[str]:
    """Return the columns of a measurement that can be limited."""
    measured = [name for name in LIMITABLE_COLUMNS if not math.isnan(getattr(measurement, name))]
    static = [f"static.{name}" for name in measurement.static]
    return measured + static


def violated_limits(limits: Sequence[Limit], runs: Sequence[Measurement]) -> str:
    """Return the limits that the medians of a configuration's runs violate, as text.

    A failed run violates every limit.
    """
    if not limits:
        return ""
    if not all(m.ok for m in runs):
        return "it no longer runs"

    violated = []
    for limit in dict.fromkeys(limits):
        median = float(np.median([limit.value_of(m) for m in runs]))
        # A column that was not measured is no proof: NaN violates the limit.
        if not median <= limit.maximum:
            violated.append(f"{limit.column} {median:.4g} > {limit.maximum:g}")
    return ", ".join(violated)
