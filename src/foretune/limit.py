"""Hard limits: what a measurement may cost at most to count at all."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from foretune.errors import UnknownName, UsageError
from foretune.measurement import Measurement
from foretune.objective import Objective

if TYPE_CHECKING:
    import numpy.typing as npt

LIMITABLE_COLUMNS = ("time_ms", "power_w", "energy_mj", "compile_s", "relative_error")
"""What can be limited; and every ``static.<name>`` that a kernel's runs report."""
POWER_COLUMNS = ("power_w", "energy_mj")


@dataclass(frozen=True)
class Limit:
    """The most that one column of the run table may be.

    Attributes:
        column: one of `FIGURES`, or ``static.<name>``.
        maximum: in the column's unit.
    """

    column: str
    maximum: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the limit meant by ``text``, e.g. ``power_w=300``.

        Raises:
            UsageError: it cannot be read, or no limit of that name exists.
        """
        column, equals, number = (part.strip() for part in text.partition("="))
        if not equals:
            raise UsageError(f"limit {text!r} has no '=': give COLUMN=MOST, like power_w=300")
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
        """Return the limited figure of a measurement; NaN where nobody took it."""
        if self.column in LIMITABLE_COLUMNS:
            return float(getattr(measurement, self.column))
        return float(measurement.static.get(self.column.removeprefix("static."), math.nan))

    def is_satisfied_by(self, measurement: Measurement) -> bool:
        """Whether a measurement keeps to it; one that does not say so does not."""
        return self.value_of(measurement) <= self.maximum

    def probability(self, predicted: Mapping[str, Any]) -> "npt.NDArray[np.float64]":
        """Return how likely it is to hold, from `Predictor.predict`'s columns: 1 if it cannot say.

        The logarithm of a prediction errs normally, and its 90 % interval is 1.645 standard
        deviations to each side. Energy is the product of time and power, which err independently.
        """
        from scipy.special import ndtr

        factors = ("time_ms", "power_w") if self.column == "energy_mj" else (self.column,)
        value, variance = np.ones(len(predicted["p_valid"])), 0.0
        for factor in factors:
            if factor not in predicted:
                return np.ones_like(value)
            predicted_value = np.asarray(predicted[factor])
            value = value * predicted_value
            variance = (
                variance + (np.log(predicted[f"{factor}_high"] / predicted_value) / 1.645) ** 2
            )
        distance = np.log(self.maximum / value) / np.sqrt(np.maximum(variance, 1e-12))
        return np.asarray(ndtr(distance))


@dataclass(frozen=True)
class ConstrainedObjective:
    """An objective that counts only within hard limits: to a searcher, what breaks one failed.

    Attributes:
        objective: what is minimised.
        limits: all of them must hold.
    """

    objective: Objective
    limits: tuple[Limit, ...]

    def value_of(self, measurement: Measurement) -> float:
        """Return the objective of a measurement: infinite if it failed or breaks a limit."""
        within = all(limit.is_satisfied_by(measurement) for limit in self.limits)
        return self.objective.value_of(measurement) if within else math.inf

    def is_known(self, measurement: Measurement) -> bool:
        """Whether a measurement says all that objective and limits ask; a failure says enough."""
        figures = [limit.value_of(measurement) for limit in self.limits]
        figures.append(self.objective.value_of(measurement))
        return not (measurement.ok and any(map(math.isnan, figures)))


def limitable_columns_of(measurement: Measurement) -> list[str]:
    """Return the columns of a measurement that can be limited."""
    taken = [name for name in LIMITABLE_COLUMNS if not math.isnan(getattr(measurement, name))]
    return [*taken, *(f"static.{name}" for name in measurement.static)]


def violated_limits(limits: Sequence[Limit], runs: Sequence[Measurement]) -> str:
    """Return which limits the medians of some runs of one configuration break; empty if none.

    A run that failed breaks them all: nobody knows what it would have cost.
    """
    if not limits:
        return ""
    if not all(m.ok for m in runs):
        return "it no longer runs"
    medians = {limit: float(np.median([limit.value_of(m) for m in runs])) for limit in limits}
    return ", ".join(
        f"{limit.column} {figure:.4g} > {limit.maximum:g}"
        for limit, figure in medians.items()
        if not figure <= limit.maximum
    )
